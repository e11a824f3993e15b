"""What the checks of trainings decide: against a control, by rates and seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from papers_helpers import assert_whole, checked
from papers_runs import measured
from worlds.de_smith_depth import as_published

from normless_papers.claims import Estimate
from normless_papers.claims.training import best_accuracy, opposite, runs_do_not_train, runs_train, trains
from normless_papers.experiments.effort import Training
from normless_papers.experiments.protocol import asked_by
from normless_papers.experiments.runs import Runs
from normless_papers.published import published_as
from normless_papers.understanding_bn.rate_search import (
    best_decade,
    best_rate,
    highest_decade,
)

CHANCE = 10.0
PERCENT = st.floats(0, 100)
Accuracies = Mapping[float, Sequence[float | None]]


def table(accuracies: Accuracies, outcome: str = "trained") -> pd.DataFrame:
    """A run per rate and seed; None is a run that diverged."""
    return pd.DataFrame(
        {
            "rate": rate,
            "seed": seed,
            "outcome": "diverged" if value is None else outcome,
            "test_accuracy": math.nan if value is None else value,
            "chance_accuracy": CHANCE,
        }
        for rate, values in accuracies.items()
        for seed, value in enumerate(values)
    )


CONTROL = table({0.1: [95.0, 96.0, 97.0]})


@given(PERCENT, PERCENT)
def test_half_of_the_controls_gain_decides(accuracy: float, control: float) -> None:
    possible = CHANCE + (100 - CHANCE) / 2
    needed = CHANCE + (control - CHANCE) / 2
    assume(min(abs(accuracy - needed), abs(accuracy - possible), abs(control - possible)) > 1e-6)
    found = trains("It trains.", Estimate(accuracy), Estimate(control), CHANCE)
    if control < possible:
        expected = "holds" if accuracy > possible else "inconclusive"
    else:
        expected = "holds" if accuracy > needed else "fails"
    assert found.verdict == expected
    assert opposite(found).verdict == {"holds": "fails", "fails": "holds"}.get(expected, expected)


def test_a_control_that_learned_little_and_missing_or_failed_runs_decide_nothing() -> None:
    short, untrained = table({0.1: [30.0, 31.0, 29.0]}), table({0.1: [10.0, 10.0, 10.0]})
    assert runs_do_not_train("It does not.", untrained, short).verdict == "inconclusive"
    assert runs_train("It trains.", table({0.1: [90.0, 91.0]}, outcome="failed"), CONTROL).verdict == "inconclusive"
    assert runs_train("It trains.", CONTROL.iloc[:0], CONTROL).verdict == "inconclusive"
    assert runs_do_not_train("It does not.", CONTROL.iloc[:0], CONTROL).verdict == "inconclusive"


def test_the_best_rate_counts_and_divergence_is_chance() -> None:
    found = best_accuracy(table({0.1: [90.0, None, 90.0], 0.2: [80.0, 80.0, 80.0], 0.4: [None, None, None]}))
    assert found == Estimate(80.0, 0.0, 3, {0: 80.0, 1: 80.0, 2: 80.0})
    best_two = best_accuracy(table({0.1: [90.0, None, 92.0], 0.2: [80.0, 80.0, 80.0]}), best=2)
    assert (best_two.mean, best_two.n, best_two.by_seed) == (91.0, 2, {})


@pytest.mark.parametrize(
    ("reached", "verdict"),
    [
        # Nothing is learned at any rate.
        ({}, "holds"),
        # It trains below the grid, and not at its rates.
        ({-9: 0.9, -8: 0.6, -10: 0.7}, "fails"),
        # It learns a little, and more the lower the rate.
        ({-14: 0.14, -13: 0.13, -12: 0.12}, "inconclusive"),
        # So it does, but best at a rate inside.
        ({-14: 0.11, -13: 0.13, -12: 0.12}, "holds"),
    ],
)
def test_what_does_not_train_was_tried_below_the_grid(reached: Mapping[int, float], verdict: str) -> None:
    """ZeroInit, section 3: "the optimal learning rates are not at the boundary of our grid search"."""
    values: dict[str, dict[int, float | None]] = {
        "none": {**dict.fromkeys(range(-14, 1)), **reached},
        "batch_norm": dict.fromkeys(range(-14, 1), 0.94),
    }
    tables = []
    for method, by_exponent in values.items():
        rates = {
            2.0**power: [None if v is None else 100 * v + 0.1 * seed for seed in range(4)]
            for power, v in by_exponent.items()
        }
        tables.append(table(rates).assign(method=method))
    runs = Runs(pd.concat(tables), pd.DataFrame(), Training((asked_by("skipinit/table-1")[0].sweep,)))
    found = runs.does_not_train("It fails.", against={"method": "batch_norm"}, method="none")
    assert found.verdict == verdict


def test_rates_are_compared_seed_by_seed() -> None:
    # The first seed does not diverge at 0.1 and is best at 0.01, the second diverges beyond 0.01.
    runs = table({0.01: [90.0, 80.0], 0.1: [60.0, None]})
    assert highest_decade(runs).by_seed == pytest.approx({0: -1, 1: -2})
    assert best_decade(runs).by_seed == pytest.approx({0: -2, 1: -2})
    assert best_rate(runs) == 0.01
    nowhere = table({0.01: [10.0], 0.1: [None]}).assign(outcome=["chance", "diverged"])
    assert highest_decade(nowhere).mean == best_decade(nowhere).mean == pytest.approx(math.log10(0.005))
    # Runs that raised cannot tell.
    assert math.isnan(highest_decade(nowhere.assign(outcome="failed")).mean)


@pytest.mark.parametrize("name", ["skipinit/table-4", "skipinit/table-6"])
def test_a_world_as_published_is_tabulated_as_published(name: str) -> None:
    evidence = checked(name, measured(name, as_published(name)))
    merged = assert_whole(name, evidence)
    metric = "test_accuracy" if "test_accuracy_published" in merged else "training_loss"
    known = merged[merged[f"{metric}_published"].notna()]
    assert list(known["lr_log2_measured"]) == list(known["lr_log2_published"])
    gaps = (known[f"{metric}_measured"] - known[f"{metric}_published"]).abs()
    assert (gaps <= known["std_published"].astype(float) + 1e-9).all()
    dashes = [(row["variant"], str(row["depth"])) for row in published_as(name).rows if row.get("trainable") is False]
    not_trained = evidence.measured[~evidence.measured["trainable"].astype(bool)]
    assert {(row["variant"], str(row["depth"])) for row in not_trained.to_dict("records")} == set(dashes)
    assert not_trained["lr_log2"].isna().all()
