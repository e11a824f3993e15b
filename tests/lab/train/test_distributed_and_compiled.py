"""Two processes that share every batch train as one does, and so does the compiled network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_helpers import assert_two_processes_are_one

from normless_lab.train import TrainConfig, train, trained_network

CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)",
    scheme="skipinit(alpha=1)",
    batch_size=300,
    micro_batch_size=100,
    epochs=1,
    mixup=0.3,
    precision="64-true",
    device="cpu",
)


@pytest.mark.slow
def test_two_processes_are_one(tmp_path: Path) -> None:
    assert_two_processes_are_one(CONFIG, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler's own
def test_compiled_is_not_another_network(tmp_path: Path) -> None:
    config = replace(CONFIG, precision="32-true", micro_batch_size=None)
    compiled = train(replace(config, compile=True), tmp_path / "compiled")
    plain = train(config, tmp_path / "plain")
    assert compiled.epochs[0].training_loss == pytest.approx(plain.epochs[0].training_loss, rel=1e-4)
    states = [trained_network(tmp_path / name).state_dict() for name in ("compiled", "plain")]
    assert list(states[0]) == list(states[1])
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-3, atol=1e-4)
