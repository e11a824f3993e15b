"""Two processes that share every batch train as one does, and so does the compiled network."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from normless.train import TrainConfig, train, trained_network

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
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "from normless.train import TrainConfig, train\n"
        f"result = train(TrainConfig.from_dict({replace(CONFIG, devices=2).to_dict()!r}), sys.argv[1])\n"
        "assert result.steps == 4\n"
    )
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program, tmp_path / "two"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    one = train(CONFIG, tmp_path / "one")
    two = pd.read_parquet(tmp_path / "two" / "epochs.parquet").iloc[0]
    for name in ("training_loss", "training_loss_with_l2", "training_accuracy", "test_loss", "test_accuracy"):
        assert two[name] == pytest.approx(getattr(one.epochs[0], name), rel=1e-9), name
    steps = [pd.read_parquet(tmp_path / name / "steps.parquet")["loss"] for name in ("one", "two")]
    assert steps[1].tolist() == pytest.approx(steps[0].tolist(), rel=1e-9)
    states = [trained_network(tmp_path / name).state_dict() for name in ("one", "two")]
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-9, atol=1e-12)


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
