"""Fixup in the Transformer: the template against what it should be, the table's definition, and its checks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
import torch
from papers_helpers import assert_whole, carried_out, check_of

from normless.lab.laboratory import Laboratory, SweepResult
from normless.lab.sweep import Sweep
from normless.papers.artefact import Context, artefact_of
from normless.papers.fixup import transformer as template
from normless.papers.verdict import verdict_of

PUBLISHED_ELSEWHERE = (
    "iwslt_de_en/(Deng et al. 2018), with normalization",
    "wmt_en_de/(Vaswani et al. 2017), with normalization",
)


class Scored:
    """A laboratory that makes up BLEU and the course of every run."""

    def __init__(self, bleu: Mapping[str, float], outcomes: Mapping[str, str] | None = None) -> None:
        self.bleu, self.outcomes = bleu, outcomes or {}
        self.sweeps: list[Sweep] = []

    def run(self, sweep: Sweep, **_: Any) -> SweepResult:
        self.sweeps.append(sweep)
        rows = []
        for point in sweep.points():
            method = point.labels["method"]
            outcome = self.outcomes.get(method, "trained")
            score = math.nan if outcome == "failed" else self.bleu[method] + 0.01 * point.seed
            rows.append(
                {**point.labels, "rate": point.rate, "seed": point.seed, "outcome": outcome, "bleu": score}
                | {"hash": point.config.hash, "error": "ValueError: no" if outcome == "failed" else None}
            )
        runs = pd.DataFrame(rows)
        epochs = runs.assign(epoch=1, validation_loss=2.0, validation_bleu=math.nan)
        return SweepResult(sweep, runs, epochs)

    def carry_out(self, _: Any) -> list[Any]:
        return []


def table_3(lab: Scored, tmp_path: Path, budget: str = "paper") -> Any:
    found = artefact_of("fixup/table-3")
    context = Context(budget, cast(Laboratory, lab), tmp_path, data_root="texts")  # type: ignore[arg-type]
    return found.function(context, **found.settings[budget])  # type: ignore[index]


def test_table_3_trains_two_texts_with_and_without_norms(tmp_path: Path) -> None:
    lab = Scored({"layer_norm": 34.2, "fixup": 34.5})
    evidence = table_3(lab, tmp_path)
    configs = [point.config for sweep in lab.sweeps for point in sweep.points()]
    assert [(config.data_root, config.scheme) for config in configs] == [
        ("texts/iwslt14_de_en", "layer_norm"),
        ("texts/iwslt14_de_en", "fixup"),
        ("texts/wmt16_en_de", "layer_norm"),
        ("texts/wmt16_en_de", "fixup"),
    ]
    merged = assert_whole("fixup/table-3", evidence, unmeasured=PUBLISHED_ELSEWHERE)
    assert len(merged) == 6
    # A single run of each: BLEU is not compared, divergence is.
    assert [one.verdict for one in evidence.checks] == ["inconclusive", "holds"] * 2


@pytest.mark.parametrize(
    ("fixup", "outcome", "verdicts"),
    [
        (34.0, "trained", ["holds", "holds"]),
        (32.0, "trained", ["fails", "holds"]),
        (0.0, "diverged", ["fails", "fails"]),
        (0.0, "failed", ["inconclusive", "inconclusive"]),
    ],
)
def test_a_match_is_within_one_bleu(fixup: float, outcome: str, verdicts: list[str], tmp_path: Path) -> None:
    lab = Scored({"layer_norm": 34.2, "fixup": fixup, "skipinit": 30.0}, {"fixup": outcome})
    evidence = table_3(lab, tmp_path, "small")
    assert [one.verdict for one in evidence.checks] == (
        ["inconclusive", "fails"] if outcome == "diverged" else verdicts
    )
    assert len(lab.sweeps[0].points()) == 6
    assert any("Not the paper's setup" in remark for remark in evidence.remarks)


TRAINING = {
    "data": "grammar(train=60, validation=4, test=4)",
    "vocabulary": 200,
    "batch_tokens": 400,
    "epochs": 2,
    "warmup_steps": 2,
    "rate": 3e-3,
    "beam_width": 1,
    "longer_by": 2,
}


def test_the_template_holds_and_trains(context: Context) -> None:
    evidence = carried_out("fixup/transformer", context, layers=2, width=16, training=TRAINING)
    assert_whole("fixup/transformer", evidence)
    assert verdict_of(evidence.checks) == "holds"
    counts = evidence.measured.set_index("quantity")["count"]
    assert counts["scalar multipliers"] == 10
    assert counts["scalar biases"] == 6 * 4 + 4 * 3 + 1
    assert check_of(evidence, "trains stably").numbers["steps"] > 2


@pytest.mark.slow
def test_another_initialization_is_noticed(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    original = template.convert

    def spoiled(model: Any, scheme: str, *inputs: Any) -> Any:
        network = original(model, scheme, *inputs)
        with torch.no_grad():
            network.encoder.layers[0].feed_forward.linear2.weight.add_(0.01)
            network.decoder.layers[0].self_attention.attention.value.weight.mul_(1.01)
        return network

    monkeypatch.setattr(template, "convert", spoiled)
    evidence = carried_out("fixup/transformer", context, layers=1, width=16, training=TRAINING)
    failing = {one.claim.split(",")[0] for one in evidence.checks if one.verdict == "fails"}
    assert "The last layer of every branch is zero" in failing
    assert "Every attention and feed-forward branch outputs zero at the start" in failing
    assert any(claim.startswith("The other weights of a branch") for claim in failing)


@pytest.mark.parametrize(
    ("outcome", "first", "last", "verdict"),
    [
        ("trained", 5.0, 3.0, "holds"),
        ("chance", 5.0, 4.9, "holds"),
        ("diverged", 5.0, 4.0, "fails"),
        ("trained", 5.0, 5.1, "fails"),
        ("failed", math.nan, math.nan, "inconclusive"),
    ],
)
def test_stable_training_is_told_from_others(outcome: str, first: float, last: float, verdict: str) -> None:
    row = {"quantity": "training by fixup", "outcome": outcome, "first_loss": first, "last_loss": last, "steps": 9}
    assert template._training_check(pd.DataFrame([row])).verdict == verdict
