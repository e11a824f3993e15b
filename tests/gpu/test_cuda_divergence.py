"""Divergence is found in the step in which eager training finds it, wherever in a capture that is."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_helpers import NEEDS_CARD, ONLY_ON_CARD, Finished, run

pytestmark = NEEDS_CARD


CASES: dict[str, dict[str, Any]] = {
    "in the second step": {"scheme": "none", "rate": 1e6},
    "while the rate rises": {"rate": 5.0, "warmup_epochs": 3, "epochs": 4},
    "with clipping, which keeps it": {"scheme": "none", "rate": 1.0, "clip": 0.01},
}


def assert_same_end(a: Finished, b: Finished, rtol: float) -> None:
    """The same step and outcome, and the same losses until the last."""
    kept = ("outcome", "diverged_epoch", "diverged_step", "steps")
    assert [getattr(a.result, name) for name in kept] == [getattr(b.result, name) for name in kept]
    assert len(a.losses) == len(b.losses)
    assert a.losses[:-2] == pytest.approx(b.losses[:-2], rel=rtol, nan_ok=True)
    assert len(a.result.epochs) == len(b.result.epochs)


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_the_diverged_step_is_that_of_eager_training_and_of_the_cpu(settings: dict[str, Any], tmp_path: Path) -> None:
    captured = run(tmp_path / "auto", **settings)
    assert_same_end(captured, run(tmp_path / "never", **settings, graph="never"), 1e-5)
    assert_same_end(captured, run(tmp_path / "cpu", **settings | {"device": "cpu"}), 1e-2)
    assert (captured.result.outcome == "diverged") != ("clip" in settings)
    if captured.result.outcome == "diverged":
        assert captured.losses[captured.result.diverged_step - 2] < 1000


@ONLY_ON_CARD
def test_memory_of_runs_that_are_over_is_free(tmp_path: Path) -> None:
    def after(name: str) -> int:
        run(tmp_path / name, epochs=2, precision="32-true")
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    after("first")
    second = after("second")
    for number in range(4):
        last = after(f"run-{number}")
    assert last <= second + (1 << 20), "each run leaves a graph's memory behind"
