"""Runs that are interrupted, at any step and on either kind of processor, end as the uninterrupted one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cuda_helpers import DEVICE, NEEDS_CARD, Finished, assert_same_run, config, finished, run
from run_helpers import Interrupt

from normless_lab.train import train

pytestmark = NEEDS_CARD

# What has state besides weights: masks, running statistics, the parity of alternating norms, momentum.
SETTINGS: dict[str, dict[str, Any]] = {
    "dropout and batch norm": {"dropout": 0.5, "scheme": "batch_norm", "schedule": "cosine"},
    # Seven steps an epoch: an epoch begins in the odd state as often as in the even one.
    "alternating": {"scheme": "alternating_batch_norm", "data": "digits(train=230, test=50)"},
    "mixup and dropped branches": {"scheme": "zeroinit(dropout=0.6)", "mixup": 0.5, "clip": 0.02},
}


def interrupted(folder: Path, at: tuple[int, ...], **settings: Any) -> Finished:
    """A run with a checkpoint after every second step, interrupted after these steps and resumed each time."""
    for step in at:
        with pytest.raises(KeyboardInterrupt):
            train(config(**settings), folder, listeners=[Interrupt(step)], checkpoint_every="2")
    return finished(folder, train(config(**settings), folder, checkpoint_every="2"))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_an_interrupted_run_is_the_uninterrupted_one(settings: dict[str, Any], tmp_path: Path) -> None:
    """Interrupted while a capture warms up, within the second epoch (an odd step) and in the last."""
    whole = run(tmp_path / "whole", **settings)
    assert_same_run(interrupted(tmp_path / "parts", (3, 9, 17), **settings), whole, 1e-7)


def test_a_run_goes_on_with_and_without_a_graph(tmp_path: Path) -> None:
    settings = SETTINGS["dropout and batch norm"]
    whole = run(tmp_path / "whole", **settings)
    for first, then in (("auto", "never"), ("never", "auto")):
        folder = tmp_path / first
        with pytest.raises(KeyboardInterrupt):
            train(config(**settings, graph=first), folder, listeners=[Interrupt(9)], checkpoint_every="2")
        resumed = train(config(**settings, graph=then), folder)
        assert_same_run(finished(folder, resumed), whole, 1e-7)


@pytest.mark.parametrize("first", ["cpu", DEVICE])
def test_a_run_goes_on_on_the_other_kind_of_processor(first: str, tmp_path: Path) -> None:
    settings = config(scheme="alternating_batch_norm", data="digits(train=230, test=50)", schedule="cosine")
    then = DEVICE if first == "cpu" else "cpu"
    with pytest.raises(KeyboardInterrupt):
        train(replace(settings, device=first), tmp_path / "run", listeners=[Interrupt(10)], checkpoint_every="3")
    resumed = train(replace(settings, device=then), tmp_path / "run")
    whole = train(replace(settings, device="cpu"), tmp_path / "whole")
    assert_same_run(finished(tmp_path / "run", resumed), finished(tmp_path / "whole", whole), 2e-4, atol=1e-5)
