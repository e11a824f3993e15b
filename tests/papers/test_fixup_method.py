"""Fixup's rules, its baselines and the dynamics of its multipliers, carried out small."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from made_up_runs import Ending, made_up
from papers_helpers import assert_whole, carried_out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("artefact", "small"),
    [
        ("fixup/sqrt2-scaling", {"blocks": 8, "width": 200, "draws": 8, "depth": 10, "images": 2}),
        ("fixup/lsuv", {"depth": 16, "images": 16}),
    ],
)
def test_baselines(artefact: str, small: dict[str, Any], tmp_path: Path) -> None:
    def only_fixup_trains(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
        return Ending(0.9) if settings["scheme"] in ("fixup", "batch_norm") else Ending(0.1, "chance")

    evidence = carried_out(artefact, made_up(only_fixup_trains, tmp_path, "smoke"), **small)
    assert_whole(artefact, evidence)
    # So few draws need not tell every variance from its bounds.
    assert {check.verdict for check in evidence.checks} <= {"holds", "inconclusive"}
    assert [check.verdict for check in evidence.checks[-2:]] == ["holds"] * 2
    found = carried_out(artefact, made_up(lambda *_: Ending(0.9), tmp_path, "smoke"), **small)
    assert [check.verdict for check in found.checks].count("fails") == 1
