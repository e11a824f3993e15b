"""A captured step is the eager one and that of the CPU: losses, weights, buffers and rows of runs in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_helpers import NEEDS_CARD, ON_CARD, ONLY_ON_CARD, Replays, assert_same_run, run

pytestmark = NEEDS_CARD

# What each would catch is said where it is not plain from the settings.
CASES: dict[str, dict[str, Any]] = {
    # The rate is another in every step: a rate captured as a number stays that of the capture.
    "cosine after a warm-up": {"schedule": "cosine", "warmup_epochs": 1},
    # Groups with rates and decays of their own.
    "rate groups": {"scheme": "fixup", "scalar_rate_scale": 0.1, "decay_policy": "weights", "schedule": "linear"},
    # Without momentum the optimizer has no state.
    "plain descent": {"momentum": 0.0, "weight_decay": 0.0},
    # The factor of a row depends on values: a Python comparison would be captured as it came out.
    "clipping": {"clip": 0.01, "schedule": "cosine", "rate": 0.5},
    # Targets are shares and not classes; the mixture is another in every step.
    "mixup and smoothing": {"mixup": 0.7, "label_smoothing": 0.1, "cutout": 3, "crop": 1, "flip": True},
    # Running statistics move once per step, warm-up passes of the capture included.
    "batch norm": {"scheme": "batch_norm"},
    # Parts of 11, 11 and 10.
    "unequal ghosts": {"scheme": "ghost_batch_norm(size=12)"},
    # State flips in each step: the graph of an even step is not that of an odd one. 5 steps an epoch, so that
    # the parity of an epoch's first step changes.
    "alternating": {"scheme": "alternating_batch_norm", "data": "digits(train=160, test=50)"},
    # Parts of 12, 12 and 8; batch norm moves its statistics with each.
    "micro-batches": {"scheme": "batch_norm", "micro_batch_size": 12},
    # One batch an epoch that is smaller than the batch size, and fewer steps than a capture warms up by.
    "few examples": {"scheme": "batch_norm", "data": "digits(train=20, test=7)", "epochs": 5},
    # Blocks run twice; a segment's random state and batch statistics are to be restored.
    "recomputed": {"scheme": "batch_norm", "recompute": "always", "model": "normless:wide_resnet(depth=16, width=1)"},
    # Calibrates on a batch, which is on the CPU, before training.
    "calibrated": {"scheme": "lsuv"},
    "batch of one": {"batch_size": 1, "data": "digits(train=15, test=3)", "rate": 0.01, "epochs": 2},
}


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_captured_steps_are_those_of_eager_training_and_of_the_cpu(settings: dict[str, Any], tmp_path: Path) -> None:
    captured = run(tmp_path / "auto", **settings)
    eager = run(tmp_path / "never", **settings, graph="never")
    cpu = run(tmp_path / "cpu", **settings | {"device": "cpu"})

    assert_same_run(captured, eager, 1e-7)
    # Images are normalized in float32 on either, where the card may fuse two roundings into one.
    assert_same_run(captured, cpu, 2e-4, atol=1e-5)


# Dropout draws by the device, so that these have no oracle on the CPU.
DRAWN: dict[str, dict[str, Any]] = {
    "dropout of zeroinit and mixup": {"scheme": "zeroinit(dropout=0.6)", "mixup": 0.4},
    "dropout in parts": {"dropout": 0.5, "micro_batch_size": 12},
}


@pytest.mark.parametrize("settings", DRAWN.values(), ids=DRAWN)
def test_captured_steps_draw_the_masks_of_eager_training(settings: dict[str, Any], tmp_path: Path) -> None:
    captured = run(tmp_path / "auto", **settings)
    assert_same_run(captured, run(tmp_path / "never", **settings, graph="never"), 1e-7)
    assert_same_run(captured, run(tmp_path / "again", **settings), 1e-7)
    assert run(tmp_path / "other", **settings, seed=1).losses[1:] != captured.losses[1:]


@ONLY_ON_CARD
@pytest.mark.parametrize("name", ["cosine after a warm-up", "batch norm"])
def test_most_steps_are_replayed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the comparisons above could be of two eager runs."""
    replays = Replays(monkeypatch)
    steps = run(tmp_path / "auto", **CASES[name] | {"epochs": 4}).result.steps
    assert replays.count >= steps // 2

    replays.count = 0
    run(tmp_path / "never", **CASES[name], graph="never")
    assert replays.count == 0


def test_the_callers_state_is_as_it_was(tmp_path: Path) -> None:
    """Seeds, the current stream, the number formats of products and cuDNN's choices are the caller's own."""

    def state() -> list[Any]:
        random = [torch.get_rng_state().tolist()]
        card = [torch.cuda.get_rng_state().tolist(), torch.cuda.current_stream()] if ON_CARD else []
        formats = [torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.is_grad_enabled()]
        cudnn = torch.backends.cudnn
        return random + card + formats + [cudnn.benchmark, cudnn.deterministic, cudnn.enabled]

    before = state()
    run(tmp_path / "float64", dropout=0.5, epochs=1)
    run(tmp_path / "float32", dropout=0.5, epochs=1, precision="32-true")
    assert state() == before
