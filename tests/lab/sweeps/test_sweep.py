from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import given, strategies as st

from normless_lab.sweeps import RateGrid, Sweep, axis_of
from normless_lab.sweeps._result_tables import extended, further_points
from normless_lab.sweeps._sweep import SweepError

SMALL = RateGrid.powers(-3, -1)


def small_sweep(**changes: Any) -> Sweep:
    depths = {str(depth): {"model": f"normless:wide_resnet(depth={depth}, width=1)"} for depth in (10, 16, 22)}
    usual: dict[str, Any] = {"name": "small", "base": {"data": "digits", "epochs": 2}, "rates": SMALL, "best": 2}
    usual["axes"] = {"scheme": axis_of("scheme", ["none", "fixup"]), "depth": depths}
    return Sweep(**usual | {"replicates": 3} | changes)


def test_a_label_with_its_own_rate_is_run_at_that_one_and_never_extended() -> None:
    axis = {"low": {"rate": 1e-4}, "grid": {}}
    sweep = small_sweep(axes={"rate of": axis})
    assert [point.rate for point in sweep.points() if point.labels["rate of"] == "low"] == [1e-4] * 3
    edges = {("low",): ["lowest"], ("grid",): ["lowest"]}
    assert extended(sweep, {("low",): [1e-4], ("grid",): SMALL.rates}, edges) == {("grid",): (1 / 16,)}


def test_a_sweep_is_what_its_file_says(tmp_path: Path) -> None:
    text = """
name: ablation
base: {data: digits, epochs: 2}
axes:
  scheme: [none, skipinit(alpha=1), fixup]
  flip: [true, null]
  depth:
    16: {model: "normless:wide_resnet(depth=16, width=1)"}
    22: {model: "normless:wide_resnet(depth=22, width=1)"}
rates: {from: -2, to: 0}
replicates: 5
exclude:
  - {scheme: none, depth: 22}
"""
    path = tmp_path / "ablation.yaml"
    path.write_text(text)
    sweep = Sweep.from_yaml(path)
    assert sweep.rates == RateGrid.powers(-2, 0)
    assert RateGrid.powers(-1000, -999).rates == (2.0**-1000, 2.0**-999)
    assert (sweep.replicates, sweep.best, sweep.run) == (5, 4, "train")
    assert len(sweep.combinations) == 3 * 2 * 2 - 2
    expected = {"scheme": "fixup", "flip": None, "model": "normless:wide_resnet(depth=16, width=1)"}
    assert sweep.settings(("fixup", "null", "16")) == {"data": "digits", "epochs": 2, **expected}
    again = Sweep.from_dict(yaml.safe_load(yaml.safe_dump(sweep.to_dict(), sort_keys=False)))
    assert again.points() == sweep.points()
    assert again == sweep


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: x", "rates missing"),
        ("{name: x, rates: [0.1], axis: {}}", "axis unknown"),
        ("[1, 2]", "should hold a mapping"),
        ("{name: x, rates: {from: -1}}", "rates: Expected a list of learning rates, exponents"),
        ("{name: x, rates: {from: a, to: 2}}", "whole exponents"),
        ("{name: x, rates: {from: 1, to: 0}}", "from the lowest to the highest"),
        ("{name: x, rates: [0.1], axes: {scheme: [none, none]}}", "not all different"),
        ("{name: x, rates: [0.1", "is not YAML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(SweepError, match=message) as caught:
        Sweep.from_yaml(path)
    assert "wrong.yaml" in str(caught.value)


GRIDS = st.tuples(st.integers(-6, 0), st.integers(1, 4), st.integers(0, 4))


@given(grid=GRIDS, best=st.integers(-16, 12))
def test_a_grid_grows_until_the_optimum_is_inside_or_extensions_are_used_up(
    grid: tuple[int, int, int], best: int
) -> None:
    """A metric with one peak at 2^best: the rates tried in the end are counted by hand."""
    low, width, extensions = grid
    high = low + width
    sweep = small_sweep(axes={}, rates=RateGrid.powers(low, high, extensions=extensions), replicates=1, best=1)
    points = list(sweep.points())
    for _ in range(2 * extensions + 3):
        rates = [point.rate for point in points]
        accuracies = [1 / (1 + abs(math.log2(rate) - best)) for rate in rates]
        runs = pd.DataFrame({"rate": rates, "test_accuracy": accuracies}).assign(seed=0, outcome="trained")
        new = further_points(sweep, runs, ["test_accuracy"])
        if not new:
            break
        points += new
    else:
        raise AssertionError("the grid grows without end")
    lowest = max(low - extensions, min(low, best - 1))
    highest = min(high + extensions, max(high, best + 1))
    assert sorted(point.rate for point in points) == [2.0**power for power in range(lowest, highest + 1)]
