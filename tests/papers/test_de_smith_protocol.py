"""The protocol's own artefact, the ablation table and the cost of batch norm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from invented_runs import Optimum, invented
from papers_helpers import assert_whole, check_of
from worlds.de_smith_depth import ablation_as_published


def test_the_ablation_is_tabulated_as_published(tmp_path: Path) -> None:
    evidence, laboratory = invented("zeroinit/table-1", ablation_as_published, tmp_path, few=False)
    merged = assert_whole("zeroinit/table-1", evidence)
    printed = merged[merged["test_accuracy_published"].notna()]
    assert list(printed["test_accuracy_measured"]) == pytest.approx(list(printed["test_accuracy_published"]), abs=0.3)
    assert list(printed["training_loss_measured"]) == pytest.approx(
        list(printed["training_loss_published"]), abs=0.005
    )
    assert set(merged["lr_log2"]) == {-2}
    assert set(merged["training_loss_lr_log2"]) == {-3}
    assert len(laboratory.sweeps) == 1
    # The table's six methods, and batch norm as the control.
    assert len({point.config.hash for point in laboratory.points}) == 7 * 7 * 15
    assert {point.config.to_dict()["model"] for point in laboratory.points} == {
        "normless:wide_resnet(depth=16, width=4, initialization=he_fan_in, classifier_bias=False)"
    }


def test_accuracies_of_the_paper_are_asked_of_its_set_up_alone(tmp_path: Path) -> None:
    def alike(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(90.0 if metric == "test_accuracy" else 0.2, -2, 0.001)

    evidence, _ = invented("zeroinit/table-1", alike, tmp_path)
    assert check_of(evidence, "more than 1 point above no normalization").verdict == "fails"
    assert check_of(evidence, "reaches 93.5 %").verdict == "fails"
    evidence, _ = invented("zeroinit/table-1", alike, tmp_path, budget="small")
    high = check_of(evidence, "reaches 93.5 %")
    assert high.verdict == "inconclusive"
    assert high.numbers["first"] == pytest.approx(90, abs=0.1)
