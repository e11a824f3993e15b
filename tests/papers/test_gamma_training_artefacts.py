"""Artefacts that train with L2 on the γ of one role: definitions, checks on made-up worlds, a tiny run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invented_runs import Optimum, invented
from papers_helpers import assert_whole, carried_out, check_of, verdict_of

from normless_lab.sweeps import RateGrid
from normless_papers.artefact import Context, artefact_of
from normless_papers.gamma.decay_comparison import BASELINE
from normless_papers.published import published_as

TABLE_2 = {row["model"]: row for row in published_as("gamma/table-2").rows}


def as_published(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Accuracies of table 2; where a guideline names no network, those of ResNet-152."""
    row = TABLE_2[labels.get("model", "resnet_152")]
    name = "W" if labels["l2"] == BASELINE else f"W_{labels['l2']}"
    return Optimum(row[name] if metric == "test_accuracy" else 1.0, exponent=-4.0)


@pytest.mark.slow
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


def test_one_network_is_not_most_of_eight(tmp_path: Path) -> None:
    """At smoke only ResNet-18 is trained: its own sign is asked, and not that of most networks."""
    evidence, _ = invented("gamma/guideline-3", as_published, tmp_path, budget="smoke")
    most = check_of(evidence, "of more networks than it raises")
    assert most.verdict == "inconclusive"
    assert "1 of 8 networks" in most.claim
    assert check_of(evidence, "lowers the test accuracy of resnet_18").verdict == "holds"
