"""Artefacts that train with L2 on the γ of one role: definitions, checks on made-up worlds, a tiny run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_laboratory import FakeLaboratory
from invented_runs import Optimum, invented
from papers_helpers import assert_whole, carried_out, check_of

from normless_lab.sweeps import RateGrid
from normless_papers.artefact import Context, artefact_of
from normless_papers.claims import verdict_of
from normless_papers.gamma.image_guidelines import BASELINE
from normless_papers.gamma.transformer_guidelines import TRANSLATION_POLICIES
from normless_papers.published import published_as

TABLE_2 = {row["model"]: row for row in published_as("gamma/table-2").rows}


def as_published(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Accuracies of table 2; where a guideline names no network, those of ResNet-152."""
    row = TABLE_2[labels.get("model", "resnet_152")]
    name = "W" if labels["l2"] == BASELINE else f"W_{labels['l2']}"
    return Optimum(row[name] if metric == "test_accuracy" else 1.0, exponent=-4.0)


def test_table_2_is_eight_networks_with_five_choices_three_times(tmp_path: Path) -> None:
    evidence, laboratory = invented("gamma/table-2", as_published, tmp_path, few=False)
    (sweep,) = laboratory.sweeps
    assert len(sweep.points()) == 8 * 5 * 4 * 3
    configs = [point.config for point in sweep.points()]
    assert len({config.hash for config in configs}) == len(configs)
    assert {config.decay_policy for config in configs} == {
        "weights", "weights+last", "weights+down", "weights+stem", "weights+other",
    }  # fmt: skip
    merged = assert_whole("gamma/table-2", evidence)
    assert len(merged) == 8
    difference = (merged["W_gamma_last_published"] - merged["W_gamma_last_measured"]).abs()
    assert difference.max() < 0.1
    assert verdict_of(evidence.checks) == "holds"
    assert len(evidence.checks) == 32
    assert not any("Not the paper's setup" in remark for remark in evidence.remarks)


def test_what_did_not_train_decides_nothing(tmp_path: Path) -> None:
    evidence, _ = invented("gamma/table-2", lambda *_: Optimum(None), tmp_path, "small", few=False)
    assert {one.verdict for one in evidence.checks} == {"inconclusive"}


@pytest.mark.parametrize(
    ("number", "checks"),
    [("2", 8), ("3", 1), ("4", 8)],
)
def test_guidelines_use_the_runs_of_table_2(number: str, checks: int, tmp_path: Path) -> None:
    evidence, laboratory = invented(f"gamma/guideline-{number}", as_published, tmp_path, few=False)
    _, other = invented("gamma/table-2", as_published, tmp_path, few=False)
    assert laboratory.sweeps == other.sweeps
    assert {one.verdict for one in evidence.checks} == {"holds"}
    assert len(evidence.checks) == checks
    assert_whole(f"gamma/guideline-{number}", evidence)


def test_guideline_3_counts_the_networks_that_gain(tmp_path: Path) -> None:
    evidence, _ = invented("gamma/guideline-3", as_published, tmp_path, few=False)
    (one,) = evidence.checks
    assert (one.numbers["lowered"], one.numbers["raised"]) == (5, 3)


def test_choices_are_compared_by_seed(tmp_path: Path) -> None:
    """Runs of one seed share their noise: a difference far below the deviation is told."""

    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(80.3 if labels["l2"] == "gamma_last" else 80.0, exponent=-4.0, deviation=5.0)

    evidence, _ = invented("gamma/table-2", world, tmp_path, few=False)
    numbers = check_of(evidence, "gamma_last besides the weights raises the test accuracy of resnet_18").numbers
    assert numbers["pairs"] == 3
    assert numbers["standard_error"] < 1e-6
    row = evidence.facts.table.iloc[1]
    assert row["difference"] == pytest.approx(0.3)
    assert row["error"] < 1e-6


@pytest.mark.slow
def test_guideline_1_trains_two_networks_of_its_own(context: Context) -> None:
    """One tiny run of everything; the laboratory keeps the weights of the two choices and seeds."""
    effort = replace(
        smoke_effort("gamma/guideline-1"),
        data="digits(train=64, test=40)",
        epochs=1,
        rates=RateGrid((0.1,), None),
        replicates=2,
    )
    evidence = carried_out("gamma/guideline-1", context, effort=effort)
    assert_whole("gamma/guideline-1", evidence)
    assert {"trained_gamma_last", "trained_branch_share"} <= set(evidence.measured.columns)
    assert check_of(evidence, "raises the test accuracy").verdict == "inconclusive"
    smaller = check_of(evidence, "γ_last ends smaller").numbers
    assert smaller["W"] > smaller["gamma_last"]
    assert len(list(context.lab.kept.iterdir())) == 4


def test_figure_3_varies_lambda(tmp_path: Path) -> None:
    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        worse = 0.0 if labels["l2"] == BASELINE else 2.0
        return Optimum(80.0 - worse, exponent=-4.0)

    evidence, laboratory = invented("gamma/figure-3", world, tmp_path, few=False)
    assert len(laboratory.sweeps[0].points()) == 5 * 2 * 4 * 3
    decays = {point.config.weight_decay for point in laboratory.sweeps[0].points()}
    assert decays == {1e-5, 3e-5, 1e-4, 3e-4, 1e-3}
    assert {one.verdict for one in evidence.checks} == {"holds"}
    assert evidence.measured["difference"].tolist() == pytest.approx([-2] * 5)
    assert_whole("gamma/figure-3", evidence)
    failing, _ = invented("gamma/figure-3", lambda *_: Optimum(80.0, exponent=-4.0), tmp_path, few=False)
    assert {one.verdict for one in failing.checks} == {"inconclusive"}


def of_language(name: str, world: Any, tmp_path: Path) -> tuple[Any, FakeLaboratory]:
    return invented(name, world, tmp_path, few=False, translates=True)


def printed_bleu(metric: str, labels: Mapping[str, str]) -> Optimum:
    gains = {BASELINE: 0.0, "gamma_1": 0.117, "gamma_2": 0.3491, "gamma_1, gamma_2": 0.2064}
    if metric == "bleu":
        return Optimum(34.7894 + gains[labels["l2"]], exponent=-11, deviation=0.001)
    return Optimum(91.8807 + gains[labels["l2"]], exponent=-15.6, deviation=0.001)


def test_table_3_decays_the_norms_of_attention_or_of_feed_forward_layers(tmp_path: Path) -> None:
    evidence, laboratory = of_language("gamma/table-3", printed_bleu, tmp_path)
    points = laboratory.sweeps[0].points()
    assert len(points) == 2 * 3 * 3
    assert {point.config.decay_policy for point in points} == set(TRANSLATION_POLICIES.values())
    assert {point.config.COMMAND for point in points} == {"train-translation"}
    assert {one.verdict for one in evidence.checks} == {"holds"}
    assert len(evidence.checks) == 2
    merged = assert_whole("gamma/table-3", evidence)
    assert merged["diff_measured"].iloc[-1] == pytest.approx(0.3491, abs=1e-3)


def test_table_4_fine_tunes_a_local_checkpoint(tmp_path: Path) -> None:
    evidence, laboratory = of_language("gamma/table-4", printed_bleu, tmp_path)
    points = laboratory.sweeps[0].points()
    assert len(points) == 2 * 3
    assert {point.config.model for point in points} == {"transformers:texts/bert-base-uncased"}
    assert {point.config.decay_policy for point in points} == {"weights", "weights+last"}
    assert {one.verdict for one in evidence.checks} == {"holds"}
    assert_whole("gamma/table-4", evidence)


def test_guideline_1t_is_made_of_both_tables(tmp_path: Path) -> None:
    evidence, laboratory = of_language("gamma/guideline-1t", printed_bleu, tmp_path)
    assert [sweep.name for sweep in laboratory.sweeps] == ["gamma/table-3", "gamma/table-4"]
    assert len(evidence.checks) == 3
    assert {one.verdict for one in evidence.checks} == {"holds"}
    assert_whole("gamma/guideline-1t", evidence)


@pytest.mark.parametrize(
    ("gain", "deviation", "verdict"),
    [(0.5, 0.001, "fails"), (0.0, 0.001, "holds"), (-1.0, 0.001, "holds")],
)
def test_no_help_is_less_than_is_worth_naming(gain: float, deviation: float, verdict: str, tmp_path: Path) -> None:
    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(91.0 + (0.0 if labels["l2"] == BASELINE else gain), exponent=-15.6, deviation=deviation)

    evidence, _ = of_language("gamma/guideline-3t", world, tmp_path)
    assert verdict_of(evidence.checks) == verdict


def test_guideline_4t_is_told_by_the_training_loss(tmp_path: Path) -> None:
    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        lower = 0.0 if labels["l2"] == BASELINE else 0.2
        return Optimum(30.0 if metric == "bleu" else 3.0 - lower, exponent=-11, deviation=0.001)

    evidence, laboratory = of_language("gamma/guideline-4t", world, tmp_path)
    assert {point.config.decay_policy for point in laboratory.sweeps[0].points()} == {"weights", "weights+other"}
    assert verdict_of(evidence.checks) == "holds"
    assert_whole("gamma/guideline-4t", evidence)


@pytest.mark.slow
def test_a_tiny_classifier_is_trained_with_each_choice(context: Context) -> None:
    effort = replace(
        smoke_effort("gamma/guideline-3t"),
        data="sentiment(train=120, test=40)",
        epochs=1,
        batch_size=40,
        settings={"vocabulary": 300},
        rates=RateGrid((0.001,), None),
        replicates=1,
    )
    evidence = carried_out("gamma/guideline-3t", context, effort=effort)
    assert set(evidence.measured["runs"]) == {1}
    assert not evidence.measured["failed"].any(), evidence.remarks
    assert verdict_of(evidence.checks) == "inconclusive"


def test_a_data_set_of_images_is_no_text(context: Context) -> None:
    effort = smoke_effort("gamma/table-3")
    asked = replace(context, data="cifar10(train=100)")
    assert effort.sweep(asked, "name", {"norm": effort.variants}).base["data"] == effort.data
    text = replace(context, data="grammar(train=100)")
    assert effort.sweep(text, "name", {"norm": effort.variants}).base["data"] == "grammar(train=100)"


def smoke_effort(name: str) -> Any:
    return artefact_of(name).settings["smoke"]["effort"]
