"""Results as artefacts leave them, made up: for tests of what is done with results."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import lines
from normless_papers.budgets import Budget
from normless_papers.claims import Check, Verdict
from normless_papers.published import published
from normless_papers.results.reproduction import Reproduction
from normless_papers.results.storage import FIGURE, save

CYCLE: tuple[Verdict, ...] = ("holds", "fails", "inconclusive")


def figure() -> Axes:
    rows = [
        {"depth": depth, "scheme": scheme, "mean": 90 - depth / 10}
        for scheme in ("none", "fixup", "batch_norm")
        for depth in (16, 100, 400)
    ]
    return lines(pd.DataFrame(rows), x="depth", y="mean", title="Accuracies", y_label="test accuracy (%)")


def made_up(name: str, budget: Budget = "smoke", verdict: Verdict = "holds", **changes: object) -> Reproduction:
    """A result with two checks, the second of which decides, and three rows of numbers."""
    rows = [
        {key: ", ".join(map(str, held)) if isinstance(held, list) else held for key, held in row.items()}
        for row in published()[name].rows
    ]
    measured = pd.DataFrame(rows[:3] or [{"depth": 16, "loss": 0.25}, {"depth": 100, "loss": math.nan}])
    fields: dict[str, object] = {
        "asked": {"data": None, "data_root": None, "seed": 0, "settings": {"depths": [16, 100]}},
        "basis": "training",
        "measured": measured,
        "on": (str(measured.columns[0]),) if rows else (),
        "checks": (
            Check("The signal doubles in every block, to 10 %.", "holds", {"factor": 1.98, "tolerance": 0.2}),
            Check("The loss falls.", verdict, {"first": 2.3, "last": math.nan, "bound": math.inf}),
        ),
        "setup": {"network": "Wide-ResNet-16-1", "data": "digits", "seeds": [0, 1], "epochs": 3},
        "remarks": ("One seed; compare fixup/table-1.",),
        "seconds": 1.5,
        "provenance": {"normless": "0.1.0", "machine": "x86_64, 2 cores", "date": "2026-11-21 18:00"},
        "figure": "Test accuracy against depth; none, fixup, batch_norm.",
    }
    return Reproduction(name, budget, **(fields | changes))  # type: ignore[arg-type]


def fill(out: Path, names: Iterable[str] | None = None) -> list[str]:
    """Store results of the named artefacts, or all: verdicts in turn, every seventh at two budgets; their ids."""
    chosen = list(published() if names is None else names)
    folder = out / "drawn-once"
    drawn = save(made_up(chosen[0]), figure(), folder)
    for place, name in enumerate(chosen):
        results = [made_up(name, verdict=CYCLE[place % 3], runs=(f"run-{place // 2}",))]
        if place % 7 == 0:
            results.append(made_up(name, "small", verdict=CYCLE[place % 2]))
        for result in results:
            shutil.copy(drawn / FIGURE, save(result, None, out))
    shutil.rmtree(folder)
    return chosen
