"""What the checks of trainings decide: against a control, by rates and seeds, at the paper's set-up and below."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from papers_helpers import CheckedEvidence, assert_whole, check_of, verdict_of
from papers_runs import End, Optimum, evidence_of, invented
from worlds.de_smith_depth import ablation_as_published, as_published
from worlds.fixup_training import depth_of

from normless_lab.sweeps import Point
from normless_papers.artefact import Budget, Context, Evidence, artefact_of
from normless_papers.claims import Estimate
from normless_papers.claims.training import best_accuracy, opposite, runs_do_not_train, runs_train, trains
from normless_papers.experiments.comparison import ordered
from normless_papers.experiments.protocol import asked_by
from normless_papers.experiments.runs import Runs
from normless_papers.published import published_as
from normless_papers.understanding_bn.rate_search import (
    best_decade,
    best_rate,
    highest_achievable_rate,
    highest_decade,
)
from normless_papers.understanding_bn.reference_runs import plateaus

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
    runs = Runs(pd.concat(tables), pd.DataFrame(), (asked_by("skipinit/table-1")[0].sweep,))
    checked = runs.does_not_train("It fails.", against={"method": "batch_norm"}, method="none")
    assert checked.verdict == verdict


@pytest.mark.parametrize(
    ("first", "other", "factor", "holds"),
    [
        # log₂ of the optimum, of the lowest and of the highest rate within a deviation of it.
        ((2, 1, 3), (-1, -2, 0), 1, True),
        ((2, 0, 3), (-1, -2, 0), 1, None),
        ((-1, -2, 0), (2, 1, 3), 1, False),
        ((-1, -2, 1), (2, 1, 3), 1, None),
        ((2, 2, 2), (2, 2, 2), 1, None),
        ((math.nan, 0, 0), (2, 1, 3), 1, None),
        ((3, 3, 3), (1, 1, 1), 4, True),
        ((2, 2, 2), (1, 1, 1), 4, False),
        ((2, 2, 3), (1, 1, 1), 4, None),
    ],
)
def test_one_best_rate_is_above_another_only_where_their_ranges_do_not_overlap(
    first: tuple[float, float, float], other: tuple[float, float, float], factor: float, holds: bool | None
) -> None:
    assert ordered(first[0], first[1:], other[0], other[1:], factor) is holds


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


def test_an_achievable_rate_is_one_without_divergence_however_little_is_learned() -> None:
    """Appendix J of the text; half of batch norm's gain is not asked."""
    assert highest_achievable_rate(table({0.01: [90.0, 90.0], 0.1: [15.0, 14.0]})) == 0.1
    one_diverged = table({0.01: [90.0, 90.0], 0.1: [80.0, None]})
    assert highest_achievable_rate(one_diverged) == 0.01
    assert highest_achievable_rate(one_diverged[one_diverged["outcome"] == "diverged"]) == 0


def test_learning_has_plateaued_where_its_accuracy_no_longer_rises_at_the_first_rate() -> None:
    def run(name: str, accuracies: list[float]) -> pd.DataFrame:
        half = len(accuracies) // 2
        columns = {
            "epoch": range(1, len(accuracies) + 1),
            "epoch_rate": [0.1] * half + [0.01] * (len(accuracies) - half),
        }
        return pd.DataFrame({"hash": name, **columns, "training_accuracy": accuracies})

    rising, flat = [0.1, 0.5, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9], [0.5, 0.9, 0.905, 0.91, 0.99, 0.99, 1.0, 1.0]
    epochs = pd.concat([run("rising", rising), run("flat", flat), run("short", [0.5, 0.9])])
    assert plateaus(epochs) == {"rising": False, "flat": True}
    assert plateaus(epochs.iloc[:0]) == {}


@pytest.mark.parametrize("trained", [True, False])
def test_figure_3_looks_at_100_layers(trained: bool) -> None:
    """ "Not able to train with the same learning rate as BatchNorm past 100 layers": at 100 they still do."""

    def ends(labels: Mapping[str, str], point: Point) -> End:
        fails = labels["method"] in ("LSUV", "sqrt(1/2)") and (depth_of(point) > 100 or not trained)
        return End(None if fails else 50.0)

    checks = evidence_of("fixup/figure-3", ends).checks
    at_limit = [check.verdict for check in checks if "100 layers are still trained" in check.claim]
    assert at_limit == ["holds" if trained else "fails"] * 2


def verdicts_of(evidence: CheckedEvidence) -> set[str]:
    return {check.verdict for check in evidence.checks}


def alike(accuracy: float | None = 90.0, exponent: float = -2, **others: float | None) -> Any:
    """Optima of one accuracy but for some methods or variants, and of the loss 0.2."""

    def optima(metric: str, labels: Mapping[str, str]) -> Optimum:
        value = others.get(labels.get("method", labels.get("variant", "")), accuracy)
        return Optimum(value if metric == "test_accuracy" or value is None else 0.2, exponent, 0.001)

    return optima


@pytest.mark.parametrize("name", ["skipinit/table-4", "skipinit/table-6"])
def test_a_world_as_published_is_tabulated_as_published(name: str) -> None:
    evidence, _ = invented(name, as_published(name))
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


def test_the_ablation_is_tabulated_as_published() -> None:
    evidence, laboratory = invented("zeroinit/table-1", ablation_as_published, few=False)
    merged = assert_whole("zeroinit/table-1", evidence)
    printed = merged[merged["test_accuracy_published"].notna()]
    for metric, error in (("test_accuracy", 0.3), ("training_loss", 0.005)):
        assert list(printed[f"{metric}_measured"]) == pytest.approx(list(printed[f"{metric}_published"]), abs=error)
    assert (set(merged["lr_log2"]), set(merged["training_loss_lr_log2"])) == ({-2}, {-3})
    # The table's six methods, and batch norm as the control.
    assert len({config.hash for config in laboratory.configs}) == 7 * 7 * 15


def test_where_batch_norm_does_not_train_nothing_is_decided() -> None:
    assert verdicts_of(invented("skipinit/table-1", alike(None))[0]) == {"inconclusive"}
    claim = "skipinit_alpha_1 cannot be trained at depth 100,"
    for reached, verdict in ((30.0, "inconclusive"), (90.0, "holds")):
        evidence, _ = invented("skipinit/table-1", alike(None, batch_norm=reached), "smoke")
        assert check_of(evidence, claim).verdict == verdict


def test_an_optimum_at_an_end_of_the_grid_is_told_and_is_no_optimum() -> None:
    for figure in ("zeroinit/figure-2", "zeroinit/figure-4", "skipinit/figure-6"):
        evidence, _ = invented(figure, alike(exponent=30), batch_sizes=(4, 16, 64))
        assert verdicts_of(evidence) == {"inconclusive"}, figure
    evidence, _ = invented("skipinit/figure-4", alike(exponent=30), batch_sizes=(4, 16, 64))
    assert check_of(evidence, "No optimum by test accuracy lies at an end").verdict == "fails"
    evidence, laboratory = invented("skipinit/table-1", alike(exponent=30))
    assert any("lies at an end of the learning rates tried" in remark for remark in evidence.remarks)
    assert max(point.rate for point in laboratory.points) == 2.0**2
    single = replace(artefact_of("skipinit/table-1").settings["smoke"]["effort"], replicates=1, best=1)
    evidence, _ = invented("skipinit/table-1", alike(exponent=30), "smoke", effort=single)
    assert any("A single run at each rate" in remark for remark in evidence.remarks)
    assert math.isnan(evidence.measured["std"].iloc[0])


@pytest.mark.parametrize(("gap", "verdict"), [(1.0, "fails"), (0.01, "inconclusive")])
def test_a_peak_off_16_fails_where_it_is_told_from_16(gap: float, verdict: str) -> None:
    def best_at_64(metric: str, labels: Mapping[str, str]) -> Optimum:
        size = math.log2(int(labels["batch_size"]))
        return Optimum(95.0 - gap * abs(size - 6), -5, 0.2) if metric == "test_accuracy" else Optimum(0.2, -5)

    evidence, _ = invented("skipinit/figure-8", best_at_64, batch_sizes=(4, 16, 64, 256))
    assert check_of(evidence, "is highest at batch size 16").verdict == verdict


@pytest.mark.parametrize(
    ("name", "claim", "budget", "verdict"),
    [
        ("zeroinit/table-1", "more than 1 point above no normalization", "paper", "fails"),
        ("zeroinit/table-1", "reaches 93.5 %", "paper", "fails"),
        ("zeroinit/table-1", "reaches 93.5 %", "small", "inconclusive"),
        ("zeroinit/table-4", "batch_norm at batch size 64 is less than 1", "smoke", "inconclusive"),
    ],
)
def test_numbers_of_the_paper_are_asked_of_its_set_up_alone(
    name: str, claim: str, budget: Budget, verdict: str
) -> None:
    evidence, laboratory = invented(name, alike(), budget)
    check = check_of(evidence, claim)
    assert check.verdict == verdict
    assert ("Not asked of a smaller set-up" in check.claim) == (budget != "paper")
    if budget == "smoke":
        models = {config.to_dict()["model"] for config in laboratory.configs}
        assert models == {"normless:resnet_v2(depth=50, initialization=he_fan_in_truncated, channels=8)"}


def test_a_set_up_is_reduced_by_other_data_and_other_networks(context: Context) -> None:
    paper = artefact_of("understanding-bn/table-2").settings["paper"]["effort"]
    assert paper.reduction(context) == ""
    assert "cifar100" in paper.reduction(replace(context, data="cifar100"))
    assert "ResNet-8" in replace(paper, reduced="ResNet-8.").reduction(context)
    # A data set of images is no text.
    effort = artefact_of("gamma/table-3").settings["smoke"]["effort"]
    for data, taken in (("cifar10(train=100)", effort.data), ("grammar(train=100)", "grammar(train=100)")):
        sweep = effort.sweep(replace(context, data=data), "name", {"norm": effort.variants})
        assert sweep.base["data"] == taken


def test_choices_are_compared_by_seed() -> None:
    """Runs of one seed share their noise: a difference far below the deviation is told."""

    def optima(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(80.3 if labels["l2"] == "gamma_last" else 80.0, exponent=-4.0, deviation=5.0)

    evidence, _ = invented("gamma/table-2", optima, few=False)
    numbers = check_of(evidence, "gamma_last besides the weights raises the test accuracy of resnet_18").numbers
    assert numbers["pairs"] == 3
    assert numbers["standard_error"] < 1e-6
    row = evidence.facts.table.iloc[1]
    assert row["difference"] == pytest.approx(0.3)
    assert row["error"] < 1e-6


def test_one_network_is_not_most_of_eight() -> None:
    """At smoke only ResNet-18 is trained: its own sign is asked, and not that of most networks."""
    rows = {row["model"]: row for row in published_as("gamma/table-2").rows}

    def optima(metric: str, labels: Mapping[str, str]) -> Optimum:
        name = "W" if labels["l2"] == "W" else f"W_{labels['l2']}"
        return Optimum(rows[labels["model"]][name] if metric == "test_accuracy" else 1.0, exponent=-4.0)

    evidence, _ = invented("gamma/guideline-3", optima, "smoke")
    most = check_of(evidence, "of more networks than it raises")
    assert most.verdict == "inconclusive"
    assert "1 of 8 networks" in most.claim
    assert check_of(evidence, "lowers the test accuracy of resnet_18").verdict == "holds"


def test_the_pattern_of_figure_5_is_told_from_others() -> None:
    stages = {1: [1.0, 0.6, 0.5], 2: [2.0, 1.5, 1.2, 1.0], 3: [3.0, 2.0, 1.0], 4: [4.0, 3.0, 2.0]}
    rows = [
        {"block": f"{stage}-{index}", "stage": stage, "index": index, "variance": value}
        for stage, values in stages.items()
        for index, value in enumerate(values)
    ]
    falling = pd.DataFrame(rows)

    def verdicts(*tables: pd.DataFrame) -> list[str]:
        evidence = Evidence(falling, (tables, 0.95, 0.1))
        return [check.verdict for check in artefact_of("gamma/figure-5").checks_of(evidence)]

    assert verdicts(falling) == ["holds"] * 5
    rising = falling.copy()
    rising.loc[rising["block"] == "2-3", "variance"] = 1.4
    assert verdicts(rising) == ["holds", "holds", "fails", "holds", "holds"]
    rising.loc[rising["block"] == "3-0", "variance"] = 1.1
    assert verdicts(rising) == ["holds", "holds", "fails", "fails", "holds"]
    assert verdicts(falling, falling, rising) == ["holds", "holds", "inconclusive", "inconclusive", "holds"]


def test_zeroinits_algorithm_holds_beside_runs_that_are_short() -> None:
    few = {"depth": 10, "draws": 200}
    evidence, _ = invented("zeroinit/zeroinit", alike(exponent=-3), "smoke", **few)
    assert_whole("zeroinit/zeroinit", evidence)
    for claim in ("exceed 94 %", "1000 layers train"):
        assert check_of(evidence, claim).verdict == "inconclusive"
    assert {check.verdict for check in evidence.checks if "1000" not in check.claim} == {"holds"}
    evidence, _ = invented("zeroinit/zeroinit", alike(None, -3, batch_norm=90.0), "smoke", **few)
    assert check_of(evidence, "100 layers train without").verdict == "fails"


def test_l2_dominates_the_initial_loss() -> None:
    name = "zeroinit/l2-dominates-initial-loss"
    small = {"depths": (10, 40), "images": 4, "data": "gaussian(image_shape=(3, 8, 8), train=4)"}
    evidence, laboratory = invented(name, alike(exponent=-3), "smoke", **small)
    assert_whole(name, evidence)
    assert check_of(evidence, "larger share").verdict == "holds"
    assert check_of(evidence, "training of 100 layers is stable").verdict == "holds"
    decays = {(point.labels["method"], point.config.to_dict()["weight_decay"]) for point in laboratory.points}
    assert decays == {("batch_norm", 5e-4), ("zeroinit_without_l2", 0.0)}
    assert artefact_of(name).basis == "measurement"
    assert verdict_of(evidence.checks) != "holds"
