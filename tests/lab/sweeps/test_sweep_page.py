"""The page of a sweep says what its tables say, for sweeps of every shape."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any

import pytest

from normless_lab.sweeps import RateGrid, RunRow, Sweep, SweepFigure, sweep_result, write_sweep_page
from normless_lab.sweeps.result_tables import SweepResult

DEPTH = {str(depth): {"model": f"normless:wide_resnet(depth={depth}, width=1)"} for depth in (10, 16)}
SCHEMES = {name: {"scheme": name} for name in ("none", "fixup")}


def result_of(accuracies: dict[tuple[Any, ...], float], axes: dict[str, Any], **options: Any) -> SweepResult:
    """Return the result of a sweep with known accuracies by labels and rate; NaN for a run that diverged."""
    rates = RateGrid(tuple(sorted({key[-1] for key in accuracies})), None)
    sweep = Sweep(
        "two words", {"data": "digits", "epochs": 1}, axes, rates, **{"replicates": 1, "best": 1, **options}
    )
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


def written(result: SweepResult, folder: Path, **options: Any) -> tuple[list[str], str]:
    """Return the names of the files and the text of the page."""
    paths = write_sweep_page(result, folder, **options)
    return [path.name for path in paths], html.unescape(paths[-1].read_text("utf-8"))


def test_an_axis_of_numbers_is_drawn_across(tmp_path: Path) -> None:
    accuracies = {
        ("10", "none", 0.1): 0.8,
        ("10", "none", 0.2): 0.7,
        ("10", "fixup", 0.1): 0.5,
        ("10", "fixup", 0.2): 0.6,
        ("16", "none", 0.1): math.nan,
        ("16", "none", 0.2): math.nan,
        ("16", "fixup", 0.1): 0.9,
        ("16", "fixup", 0.2): math.nan,
    }
    result = result_of(accuracies, {"depth": DEPTH, "scheme": SCHEMES})
    names, page = written(result, tmp_path)
    assert names == ["optimum.svg", "optimum.png", "index.html"]
    assert "At depth 16, test accuracy: fixup 90.0 % (rate 0.1); none did not train." in page
    for cell in ("80.0 %", "60.0 %", "0.2", "diverged", "–", "2 of 2", "0 of 2"):
        assert f">{cell}</td>" in page
    for text in ("two words", "data digits", "8: 5 trained, 3 diverged", "one run, at each rate", "torch "):
        assert text in page
    assert page.count("<img") == 1
    assert "://" not in page


def test_without_numbers_the_rate_is_drawn_across(tmp_path: Path) -> None:
    accuracies = {("none", 0.1): 0.5, ("none", 0.2): 0.6, ("fixup", 0.1): 0.8, ("fixup", 0.2): 0.7}
    result = result_of(accuracies, {"scheme": SCHEMES})
    first, _ = written(result, tmp_path / "first")
    axes = result_figure(result)
    names, page = written(result, tmp_path / "second", further=[SweepFigure("more", axes, "More of it.")])
    assert first == ["rates.svg", "rates.png", "index.html"]
    assert names == ["rates.svg", "rates.png", "more.svg", "more.png", "index.html"]
    assert "Best, test accuracy: fixup 80.0 % (rate 0.1); none 60.0 % (rate 0.2)." in page
    assert "More of it." in page
    names, page = written(result, tmp_path / "loss", metric="test_loss")
    assert names == ["index.html"]
    assert "Best, test loss: fixup 0.2 (rate 0.1); none 0.4 (rate 0.2)." in page


def result_figure(result: SweepResult) -> Any:
    from normless_lab.plots import lines

    return lines(result.runs, x="rate", y="test_accuracy", by="scheme")


def test_a_sweep_of_one_point_has_a_page(tmp_path: Path) -> None:
    names, page = written(result_of({(0.1,): 0.5}, {}), tmp_path)
    assert names == ["rates.svg", "rates.png", "index.html"]
    assert "one run, at a rate that the sweep states" in page


def test_a_page_needs_a_finished_run(tmp_path: Path) -> None:
    result = result_of({(0.1,): 0.5}, {})
    empty = sweep_result(result.sweep, [(point.config.hash, point) for point in result.sweep.points()], {})
    with pytest.raises(ValueError, match="No run of the sweep two words is finished"):
        write_sweep_page(empty, tmp_path)
