from __future__ import annotations

import math
import statistics
from itertools import combinations
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, strategies as st

from normless_lab.sweeps import optima

OUTCOMES = ("trained", "chance", "diverged", "failed")


def test_the_mean_is_over_the_best_and_the_range_within_one_deviation() -> None:
    accuracies = {0.1: [0.1, 0.88, 0.86], 0.2: [0.9, 0.2, 0.86], 0.4: [0.8, 0.8, 0.8]}
    runs = pd.DataFrame([(rate, accuracy) for rate, values in accuracies.items() for accuracy in values])
    runs = runs.set_axis(["rate", "test_accuracy"], axis=1).assign(scheme="none", outcome="trained")
    row = optima(runs, axes=["scheme"], metric="test_accuracy", best=2).iloc[0]
    assert (row["mean"], row["n"], row["rate"], row["trainable"]) == (pytest.approx(0.88), 2, 0.2, True)
    assert row["deviation"] == pytest.approx(statistics.stdev([0.9, 0.86]))
    assert (row["rate_low"], row["rate_high"], row["edge"]) == (0.1, 0.2, "")


RUNS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from([0.1, 0.2, 0.4]),
        st.one_of(st.integers(0, 8).map(lambda k: k / 8), st.just(math.nan), st.just(math.inf)),
        st.sampled_from(OUTCOMES),
    ),
    min_size=1,
    max_size=24,
)


@given(runs=RUNS, best=st.integers(1, 4), metric=st.sampled_from(["training_loss", "test_accuracy"]))
def test_optima_are_those_of_a_search_through_all_subsets(runs: Any, best: int, metric: str) -> None:
    """The oracle takes the best mean over every subset of k runs at every rate."""
    # An accuracy is finite or not a number.
    rows = [
        {"scheme": a, "rate": b, "outcome": d, metric: math.nan if metric == "test_accuracy" and c == math.inf else c}
        for a, b, c, d in runs
    ]
    table = optima(pd.DataFrame(rows), axes=["scheme"], metric=metric, best=best).set_index("scheme")
    for scheme in {row["scheme"] for row in rows}:
        mine = [row for row in rows if row["scheme"] == scheme]
        found = table.loc[scheme]
        assert found["runs"] == len(mine)
        assert all(found[name] == sum(row["outcome"] == name for row in mine) for name in OUTCOMES[1:])
        means = {rate: _best_mean(mine, rate, metric, best) for rate in sorted({row["rate"] for row in mine})}
        finite = {rate: mean for rate, mean in means.items() if mean is not None and math.isfinite(mean)}
        if not finite:
            assert math.isnan(found["rate"])
            continue
        target = (min if metric == "training_loss" else max)(finite.values())
        assert found["mean"] == pytest.approx(target)
        assert found["rate"] == min(rate for rate, mean in finite.items() if mean == pytest.approx(target, abs=1e-12))
        tried = [rate for rate, mean in means.items() if mean is not None]
        ends = {tried[0]: "lowest", tried[-1]: "highest"} if len(tried) > 1 else {}
        assert found["edge"] == ends.get(found["rate"], "")
        assert found["rate_low"] <= found["rate"] <= found["rate_high"]
        tolerance = 0.0 if math.isnan(found["deviation"]) else found["deviation"]
        near = [rate for rate, mean in finite.items() if abs(mean - target) <= tolerance + 1e-12]
        assert (found["rate_low"], found["rate_high"]) == (min(near), max(near))


def _best_mean(rows: list[dict[str, Any]], rate: float, metric: str, best: int) -> float | None:
    values = []
    for row in rows:
        if row["rate"] == rate and row["outcome"] != "failed":
            worst = math.inf if metric == "training_loss" else -math.inf
            value = row[metric]
            diverged = metric == "training_loss" and row["outcome"] == "diverged"
            values.append(worst if diverged or math.isnan(value) else value)
    if not values:
        return None
    subsets = [sum(some) / len(some) for some in combinations(values, min(best, len(values)))]
    return min(subsets) if metric == "training_loss" else max(subsets)
