"""Fixup's rules, its baselines and the dynamics of its multipliers: carried out small, and checks that can fail."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from papers_helpers import assert_whole, carried_out, check_of
from recorded_lab import recorded

from normless.papers.artefact import Context, artefact_of
from normless.papers.fixup.dynamics import _checks
from normless.papers.verdict import verdict_of
from normless.training import TrainConfig


def test_fixup(context: Context) -> None:
    evidence = carried_out("fixup/fixup", context, written_out=14, images=2, side=8)
    assert_whole("fixup/fixup", evidence)
    assert verdict_of(evidence.checks) == "holds"
    counts = check_of(evidence, "ResNet-110 gains").numbers
    assert (counts["multipliers"], counts["biases"]) == (54, 218)
    assert check_of(evidence, "54^(-1/2)").numbers["measured"] == pytest.approx(0.136, abs=5e-4)


def only_fixup_trains(config: Any) -> tuple[Any, float]:
    deep = "depth=10," not in config.model
    return ("trained", 0.4) if config.scheme == "fixup" or not deep else ("chance", 0.1)


@pytest.mark.parametrize(
    ("artefact", "small"),
    [
        ("fixup/sqrt2-scaling", {"blocks": 8, "width": 200, "draws": 8, "depth": 10, "images": 2}),
        ("fixup/lsuv", {"depth": 16, "images": 16}),
    ],
)
def test_baselines(artefact: str, small: dict[str, Any], context: Context) -> None:
    told, lab = recorded(context, only_fixup_trains)
    evidence = carried_out(artefact, told, **small)
    assert_whole(artefact, evidence)
    assert verdict_of(evidence.checks) == "holds"
    assert len(lab.configs) == 4
    all_train, _ = recorded(context, lambda config: ("trained", 0.4))
    found = carried_out(artefact, all_train, **small)
    assert [one.verdict for one in found.checks].count("fails") == 1
    paper = {
        name: artefact_of(artefact).settings["paper"][name] for name in ("depths", "rates", "batch_size", "epochs")
    }
    told, lab = recorded(context, only_fixup_trains)
    assert verdict_of(carried_out(artefact, told, **{**small, **paper}).checks) == "holds"
    configs = [config for config in lab.configs if isinstance(config, TrainConfig)]
    assert [config.rate for config in configs] == [0.1] * 8
    assert {config.batch_size for config in configs} == {128}


def test_multiplier_dynamics(context: Context) -> None:
    evidence = carried_out("fixup/multiplier-dynamics", context, steps=80, drop=40, draws=2, width=12)
    merged = assert_whole("fixup/multiplier-dynamics", evidence)
    assert set(merged["scheme"]) == {"fixup", "fixup(multiplier=False)"}
    assert len(evidence.checks) == 6


def dynamics(growth: float, cosine: float = 0.05) -> pd.DataFrame:
    """Three draws of both schemes at steps 100, 200 and 300, the drop at 200, the multiplier growing behind it."""
    rows = []
    for draw in range(3):
        for scheme in ("fixup", "fixup(multiplier=False)"):
            for step, norm, alpha in ((100, 2.0, 1.0), (200, 1.9, 1.0), (300, 1.5, 1.0 + growth)):
                held = alpha if scheme == "fixup" else float("nan")
                rate = (1 if held != held else held**2) / norm**2
                near = 1 + 0.001 * draw
                rows.append((draw, scheme, step, near * norm, near * held, near * cosine, near * rate))
    names = ["draw", "scheme", "step", "weight_norm", "multiplier", "cosine", "relative_rate"]
    return pd.DataFrame(rows, columns=names)


def test_dynamics_as_claimed_hold_and_others_fail() -> None:
    assert {one.verdict for one in _checks(dynamics(0.2), 200, 300)} == {"holds"}
    shrinking = _checks(dynamics(-0.2, cosine=0.5), 200, 300)
    assert [one.verdict for one in shrinking] == ["fails", "holds", "fails", "fails", "holds", "fails"]
