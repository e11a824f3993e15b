"""The page of a sweep says what its tables say, here of a sweep over depths."""

from __future__ import annotations

import html
import math
from itertools import product
from pathlib import Path
from typing import Any

from normless_lab.plots import lines
from normless_lab.sweeps import RateGrid, RunRow, Sweep
from normless_lab.sweeps._page import SweepFigure, write_sweep_page
from normless_lab.sweeps._result_tables import SweepResult, sweep_result

DEPTH = {str(depth): {"model": f"normless:wide_resnet(depth={depth}, width=1)"} for depth in (10, 16)}
SCHEMES = {name: {"scheme": name} for name in ("none", "fixup")}


def result_of(accuracies: dict[tuple[Any, ...], float], axes: dict[str, Any]) -> SweepResult:
    """Return the result of a sweep with known accuracies by labels and rate; NaN for a run that diverged."""
    rates = RateGrid(tuple(sorted({key[-1] for key in accuracies})), None)
    sweep = Sweep("two words", {"data": "digits", "epochs": 1}, axes, rates, replicates=1, best=1)
    points = [(point.config.hash, point) for point in sweep.points()]
    rows = {}
    for name, point in points:
        accuracy = accuracies[(*point.labels.values(), point.rate)]
        diverged = math.isnan(accuracy)
        outcome: Any = "diverged" if diverged else "trained"
        result = {"test_accuracy": 0.1 if diverged else accuracy, "test_loss": 1 - accuracy}
        config = point.config.to_dict()
        rows[name] = RunRow(name, "train", config, outcome, None, result, 1.0, "", "", {})
    return sweep_result(sweep, points, rows)


DEPTHS = ("10", "16")
BY_DEPTH = dict(
    zip(product(DEPTHS, SCHEMES, (0.1, 0.2)), (0.8, 0.7, 0.5, 0.6, math.nan, math.nan, 0.9, math.nan), strict=True)
)
CELLS = [f">{cell}</td>" for cell in ("80.0 %", "60.0 %", "0.2", "diverged", "–", "2 of 2", "0 of 2")]


def test_a_page_says_what_the_tables_say(tmp_path: Path) -> None:
    result = result_of(BY_DEPTH, {"depth": DEPTH, "scheme": SCHEMES})
    further = [SweepFigure("more", lines(result.runs, x="rate", y="test_accuracy"), "More of it.")]
    paths = write_sweep_page(result, tmp_path, metric="test_accuracy", further=further)
    assert [path.name for path in paths] == ["optimum.svg", "optimum.png", "more.svg", "more.png", "index.html"]
    page = html.unescape(paths[-1].read_text("utf-8"))
    best = "At depth 16, test accuracy: fixup 90.0 % (rate 0.1); none did not train."
    said = (best, "two words", "data digits", "8: 5 trained, 3 diverged", "one run, at each rate", "More of it.")
    assert [part for part in (*said, *CELLS) if part not in page] == []
    assert (page.count("<img"), "://" in page) == (2, False)
