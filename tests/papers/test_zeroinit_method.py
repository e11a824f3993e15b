"""ZeroInit's algorithm and its claims about initialization: carried out small, and checks that can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from invented_runs import Optimum, invented
from papers_helpers import assert_whole, check_of, verdict_of

from normless_papers.artefact import artefact_of

FEW = {
    "zeroinit/zeroinit": {"depth": 10, "draws": 200},
    "zeroinit/l2-dominates-initial-loss": {
        "depths": (10, 40),
        "images": 4,
        "data": "gaussian(image_shape=(3, 8, 8), train=4)",
    },
}


def among(name: str, world: Any, folder: Path, budget: Any = "smoke") -> Any:
    """An artefact with a small part without training, in a made-up world."""
    return invented(name, world, folder, budget, **FEW.get(name, {}))


def test_zeroinit_with_made_up_training(tmp_path: Path) -> None:
    evidence, _ = among("zeroinit/zeroinit", lambda *_: Optimum(90.0), tmp_path)
    assert_whole("zeroinit/zeroinit", evidence)
    assert check_of(evidence, "exceed 94 %").verdict == "inconclusive"
    assert check_of(evidence, "1000 layers train").verdict == "inconclusive"
    assert {check.verdict for check in evidence.checks if "1000" not in check.claim} == {"holds"}

    def never(metric: str, labels: Any) -> Optimum:
        return Optimum(90.0 if labels["method"] == "batch_norm" else None)

    evidence, _ = among("zeroinit/zeroinit", never, tmp_path)
    assert check_of(evidence, "100 layers train without").verdict == "fails"


@pytest.mark.slow
def test_the_runs_are_those_of_the_tables(tmp_path: Path) -> None:
    pairs = {"zeroinit/zeroinit": "zeroinit/table-2", "zeroinit/l2-dominates-initial-loss": "zeroinit/table-3"}
    for name, table in pairs.items():
        for budget in ("smoke", "small", "paper"):
            mine, runs = (
                {point.config.hash for point in among(artefact, lambda *_: Optimum(90.0), tmp_path, budget)[1].points
                 if point.labels["method"] != "batch_norm"}
                for artefact in (name, table)
            )  # fmt: skip
            assert mine <= runs, (name, budget)


def test_l2_dominates(tmp_path: Path) -> None:
    name = "zeroinit/l2-dominates-initial-loss"
    evidence, laboratory = among(name, lambda *_: Optimum(90.0), tmp_path)
    assert_whole(name, evidence)
    assert check_of(evidence, "larger share").verdict == "holds"
    assert check_of(evidence, "training of 100 layers is stable").verdict == "holds"
    decays = {(point.labels["method"], point.config.weight_decay) for point in laboratory.points}
    assert decays == {("batch_norm", 5e-4), ("zeroinit_without_l2", 0.0)}
    assert artefact_of(name).basis == "measurement"
    assert verdict_of(evidence.checks) != "holds"
