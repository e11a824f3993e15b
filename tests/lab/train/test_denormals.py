"""Numbers below the smallest normal one are 0 while a run trains, and only then."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from normless_lab.train import TrainConfig, train
from normless_lab.train._execution import are_flushed
from normless_lab.train._run_listener import RunListener


def test_a_run_trains_like_this(tmp_path: Path) -> None:
    supported = torch.set_flush_denormal(True)
    torch.set_flush_denormal(False)
    if not supported:
        pytest.skip("this processor cannot take denormal numbers as 0")
    seen: list[bool] = []
    listener = RunListener()
    listener.on_step = lambda step, loss: seen.append(are_flushed())
    model, data = "normless:wide_resnet(depth=10, width=1)", "digits(train=64, test=10)"
    train(TrainConfig(model=model, data=data, epochs=1, batch_size=32), tmp_path, listeners=[listener])
    assert seen == [True, True]
    assert not are_flushed()
