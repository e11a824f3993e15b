"""Results in a folder: `artefacts/PAPER/NAME/BUDGET/` with `result.json`, `measured.csv` and the figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from normless.saving import digest_of, digest_of_values, inside, replaced
from normless_lab.process import write_csv
from normless_papers.budgets import BUDGETS, Budget
from normless_papers.published import published
from normless_papers.results.reproduction import Reproduction, ResultError

RESULT, TABLE, FIGURE, PICTURE = "result.json", "measured.csv", "figure.svg", "figure.png"
_FILES = (TABLE, FIGURE, PICTURE)


def folder_of(out: Path, id: str, budget: Budget) -> Path:  # noqa: A002 - what the papers' index calls it
    """Return the folder of the result of an artefact at a budget; a ValueError if it is not inside `artefacts/`."""
    return inside(out / "artefacts", id, budget)


def save(reproduction: Reproduction, axes: Axes | None, out: Path) -> Path:
    """Write a result instead of an older one; return its folder.

    The older one is deleted first and `result.json` is written last, atomically, so only complete results are loaded.
    """
    from normless_lab.plots import save_png, save_svg

    folder = folder_of(out, reproduction.id, reproduction.budget)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (RESULT, *_FILES):
        (folder / name).unlink(missing_ok=True)
    write_csv(reproduction.measured, folder / TABLE)
    if axes is not None:
        save_svg(axes, folder / FIGURE)
        save_png(axes, folder / PICTURE, dpi=150)
    files = {name: digest_of(folder / name) for name in _FILES if (folder / name).exists()}
    values = reproduction.to_dict() | {"files": files}
    with replaced(folder / RESULT) as part:
        text = json.dumps(
            values | {"digest": digest_of_values(values)}, indent=1, ensure_ascii=False, allow_nan=False
        )
        part.write_text(text + "\n", encoding="utf-8")
    return folder


def load(out: Path, id: str, budget: Budget) -> Reproduction | None:  # noqa: A002 - what the papers' index calls it
    """Return the result of an artefact at a budget, None without one; raise a ResultError if it cannot be read."""
    path = folder_of(out, id, budget) / RESULT
    try:
        result = Reproduction.from_dict(_intact(json.loads(path.read_text(encoding="utf-8")), path.parent))
        if (result.id, result.budget) != (id, budget):
            raise ResultError(f"expected the result of {id} at {budget}, got {result.id} at {result.budget}")
        return result
    except FileNotFoundError:
        return None
    except (ResultError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ResultError(f"{path} cannot be read: {error}; carry it out again with --again.") from error


def _intact(values: Any, folder: Path) -> Any:
    """Return the values of a result; ResultError unless they and the files beside it are as they were written."""
    if not isinstance(values, dict) or values.pop("digest", None) != digest_of_values(values):
        raise ResultError("it was damaged after it was written")
    for name, digest in values["files"].items():
        # A file that was removed on purpose is not damage.
        if name in _FILES and (folder / name).exists() and digest_of(folder / name) != digest:
            raise ResultError(f"{name} beside it was damaged after it was written")
    return values


def stored(out: Path) -> Iterator[Reproduction]:
    """Yield every result in a folder as `load`, in the order of the papers and then of the budgets."""
    others = sorted("/".join(path.parts[-4:-2]) for path in (out / "artefacts").glob(f"*/*/*/{RESULT}"))
    for name in dict.fromkeys([*published(), *others]):
        for budget in BUDGETS:
            if (result := load(out, name, budget)) is not None:
                yield result
