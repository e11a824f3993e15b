"""Results in a folder: `artefacts/PAPER/NAME/BUDGET/` with `result.json`, `measured.csv` and the figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from matplotlib.axes import Axes

from normless.train import replaced
from normless_papers.budgets import BUDGETS, Budget
from normless_papers.published import published
from normless_papers.reproduction import Reproduction, ResultError

RESULT, TABLE, FIGURE, PICTURE = "result.json", "measured.csv", "figure.svg", "figure.png"


def folder_of(out: Path, id: str, budget: Budget) -> Path:  # noqa: A002 - what the papers' index calls it
    """Where the result of an artefact at a budget lies."""
    return out / "artefacts" / id / budget


def save(reproduction: Reproduction, axes: Axes | None, out: Path) -> Path:
    """Write a result in place of an older one; returns its folder.

    Deleting the older one first and writing `result.json` last, at once, leaves only complete results to be loaded.
    """
    from normless.plots import save_png, save_svg

    folder = folder_of(out, reproduction.id, reproduction.budget)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RESULT, TABLE, FIGURE, PICTURE):
        (folder / name).unlink(missing_ok=True)
    reproduction.measured.to_csv(folder / TABLE, index=False)
    if axes is not None:
        save_svg(axes, folder / FIGURE)
        save_png(axes, folder / PICTURE, dpi=150)
    with replaced(folder / RESULT) as part:
        text = json.dumps(reproduction.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        part.write_text(text + "\n", encoding="utf-8")
    return folder


def load(out: Path, id: str, budget: Budget) -> Reproduction | None:  # noqa: A002 - what the papers' index calls it
    """The result of an artefact at a budget, or None if there is none; ResultError if it cannot be read."""
    path = folder_of(out, id, budget) / RESULT
    try:
        result = Reproduction.from_dict(json.loads(path.read_text(encoding="utf-8")))
        if (result.id, result.budget) != (id, budget):
            raise ResultError(f"expected the result of {id} at {budget}, got {result.id} at {result.budget}")
        return result
    except FileNotFoundError:
        return None
    except (ResultError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ResultError(f"{path} cannot be read: {error}; carry it out again with --again.") from error


def stored(out: Path) -> Iterator[Reproduction]:
    """Every result in a folder, in the order of the papers and then of the budgets; as `load`."""
    others = sorted("/".join(path.parts[-4:-2]) for path in (out / "artefacts").glob(f"*/*/*/{RESULT}"))
    for name in dict.fromkeys([*published(), *others]):
        for budget in BUDGETS:
            if (result := load(out, name, budget)) is not None:
                yield result
