"""Divergence is found in the step in which eager training finds it, wherever in a capture that is."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_helpers import NEEDS_CARD, ONLY_ON_CARD, Finished, assert_same_run, config, finished, run, written

from normless_lab.train import train

pytestmark = NEEDS_CARD

NETS = """
import torch
from torch import nn


class Loud(nn.Module):
    def __init__(self):
        super().__init__()
        self.branch, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return 1e6 * self.head(x + self.branch(x))


class Undefined(Loud):
    # Finite losses, gradients that are not: the square root has none at zero.
    def forward(self, x):
        x = x.flatten(1)
        return self.head(x + self.branch(x)) + (0 * self.branch(x)).sqrt().sum(1, keepdim=True)


def loud():
    return Loud()


def undefined():
    return Undefined()
"""

CASES: dict[str, dict[str, Any]] = {
    "in the second step": {"scheme": "none", "rate": 1e6},
    "while the rate rises": {"rate": 5.0, "warmup_epochs": 3, "epochs": 4},
    "within a later epoch": {"rate": 12.0, "warmup_epochs": 3, "epochs": 4, "momentum": 0.5},
    "when the warm start is over": {"scheme": "none", "rate": 1e4, "warm_start_epochs": 2},
    "with clipping, which keeps it": {"scheme": "none", "rate": 1.0, "clip": 0.01},
}


def assert_same_end(a: Finished, b: Finished, rtol: float) -> None:
    """The same step and outcome, and the same losses until the last."""
    kept = ("outcome", "diverged_epoch", "diverged_step", "steps", "doublings")
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


@pytest.mark.parametrize("name", ["loud", "undefined"])
def test_a_network_that_diverges_at_once(name: str, tmp_path: Path) -> None:
    """In the very first step, before anything is captured; and by a gradient that makes the second loss undefined."""
    settings = {"model": f"{written(tmp_path, NETS)}:{name}", "scheme": "as_written", "decay_policy": "all"}
    settings["precision"] = "32-true"
    captured = run(tmp_path / "auto", **settings)
    assert captured.result.outcome == "diverged"
    assert captured.result.diverged_step == (1 if name == "loud" else 2)
    assert_same_end(captured, run(tmp_path / "never", **settings, graph="never"), 1e-4)


def test_a_run_after_one_that_diverged_is_its_own(tmp_path: Path) -> None:
    """Neither memory nor generators of a graph that is gone reach the next run."""
    settings = {"dropout": 0.5, "scheme": "batch_norm"}
    before = run(tmp_path / "before", **settings)
    assert run(tmp_path / "diverges", **CASES["in the second step"]).result.outcome == "diverged"
    assert_same_run(run(tmp_path / "after", **settings), before, 1e-7)


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


def test_the_stored_result_of_a_diverged_run_is_read_again(tmp_path: Path) -> None:
    first = run(tmp_path / "run", **CASES["in the second step"])
    again = train(config(**CASES["in the second step"]), tmp_path / "run")
    assert again.to_dict() == first.result.to_dict()
    assert finished(tmp_path / "run", again).losses == pytest.approx(first.losses, nan_ok=True)
