"""Two processes that share every batch end with the weights of one process."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from run_helpers import OnEpoch, two_processes

from normless_lab.train import TrainConfig, train
from normless_lab.train._run_files import load_weights

pytestmark = pytest.mark.slow
CONFIG = TrainConfig(
    model="normless:resnet_cifar(depth=8)",
    scheme="none",
    data="digits(train=200, test=11)",
    batch_size=48,
    rate=0.01,
    epochs=2,
    precision="64-true",
    device="cpu",
)
# Schemes without norms, or with one that does not mix examples.
NORM_FREE = ("none", "lsuv", "skipinit", "fixup", "nf_resnet", "weight_standardization", "group_norm")
# Ghost batches of 12 are the same 12 examples in a share of 24.
SAME_GHOSTS = "ghost_batch_norm(size=12)"
PER_BATCH = "batch_norm"
PROGRAM = """
import os, signal, sys
from pathlib import Path
from normless_lab.train import TrainConfig, _loop as loop, train

original = loop.Training.gradients

def gradients(training, batch, step):
    sharded = {{type(parameter).__name__ == "DTensor" for parameter in training.network.parameters()}}
    assert sharded == {{training.task.config.strategy == "fsdp2"}}
    lost = Path(sys.argv[1]) / "lost"
    # The third of the second epoch's four steps.
    if lost.exists() and step == 7 and training.fabric.global_rank == 1:
        lost.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return original(training, batch, step)

loop.Training.gradients = gradients
config = TrainConfig.from_dict({config!r})
for number, scheme in enumerate({schemes!r}):
    train(TrainConfig.from_dict({{**config.to_dict(), "scheme": scheme}}), f"{{sys.argv[1]}}/{{number}}")
"""


def two_ranks(
    folder: Path, schemes: tuple[str, ...], config: TrainConfig = CONFIG, restarts: int = 0
) -> subprocess.CompletedProcess[str]:
    """Train by two processes, in `folder/two/NUMBER`; one is lost where `folder/two/lost` exists."""
    program = PROGRAM.format(config=replace(config, devices=2).to_dict(), schemes=schemes)
    return two_processes(program, folder, restarts=restarts)


def differences(folder: Path, schemes: tuple[str, ...], config: TrainConfig = CONFIG) -> Mapping[str, float]:
    """By scheme, the largest difference between a parameter after training by two processes and by one.

    Running statistics are left out: they are those of the first process's examples.
    """
    largest = {}
    for number, scheme in enumerate(schemes):
        train(replace(config, scheme=scheme), folder / "one" / str(number))
        one, two = (load_weights(folder / name / str(number) / "checkpoint.pt") for name in ("one", "two"))
        assert one.keys() == two.keys()
        largest[scheme] = max(float((one[name] - two[name]).abs().max()) for name in one if not is_running(name))
    return largest


def is_running(name: str) -> bool:
    """Whether a tensor of a checkpoint is a running statistic, or their count."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def test_two_ranks_are_one_without_norms_that_mix_examples(tmp_path: Path) -> None:
    schemes = (*NORM_FREE, SAME_GHOSTS, PER_BATCH)
    # The first begins in one process.
    train_first_epoch(replace(CONFIG, scheme=schemes[0]), tmp_path / "two" / "0")
    done = two_ranks(tmp_path, schemes)
    assert done.returncode == 0, done.stderr
    largest = differences(tmp_path, schemes)
    assert all(largest[scheme] <= 1e-10 for scheme in (*NORM_FREE, SAME_GHOSTS)), largest
    # Each process has the statistics of its own half.
    assert 1e-5 < largest[PER_BATCH] < 1, largest


def train_first_epoch(config: TrainConfig, folder: Path) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, folder, listeners=[OnEpoch(interrupt)])


@pytest.mark.parametrize("restarts", [0, 1])
def test_lost_ranks_go_on_from_the_checkpoint(tmp_path: Path, restarts: int) -> None:
    """The job ends and the next goes on, or torchrun starts the ranks again."""
    lost = tmp_path / "two" / "lost"
    lost.parent.mkdir()
    lost.touch()
    done = two_ranks(tmp_path, ("fixup",), restarts=restarts)
    assert not lost.exists()
    assert "Signal 9 (SIGKILL)" in done.stderr or "exitcode: -9" in done.stderr
    assert (done.returncode == 0) == bool(restarts), done.stderr
    assert (tmp_path / "two" / "0" / "result.json").exists() == bool(restarts)
    if not restarts:
        done = two_ranks(tmp_path, ("fixup",))
        assert done.returncode == 0, done.stderr
    assert differences(tmp_path, ("fixup",))["fixup"] <= 1e-10


def test_sharded_ranks_are_one_and_go_on_from_its_checkpoint(tmp_path: Path) -> None:
    # The last micro-batch of a process is smaller, and clipping is that of rows of whole weights.
    config = replace(CONFIG, micro_batch_size=10, clip=0.01)
    schemes = ("skipinit", "fixup")
    train_first_epoch(replace(config, scheme="skipinit"), tmp_path / "two" / "0")
    done = two_ranks(tmp_path, schemes, replace(config, strategy="fsdp2"))
    assert done.returncode == 0, done.stderr
    assert max(differences(tmp_path, schemes, config).values()) <= 1e-10
    for number, scalars in enumerate(("multiplier", "bias")):
        stored = torch.load(tmp_path / "two" / str(number) / "checkpoint.pt", weights_only=True)
        trained = [value for name, value in stored["network"].items() if scalars in name]
        assert trained
        assert all(value.any() for value in trained)
        expected = torch.load(tmp_path / "one" / str(number) / "checkpoint.pt", weights_only=True)["optimizer"]
        states = stored["optimizer"]["state"]
        assert states.keys() == expected["state"].keys()
        for key, value in states.items():
            torch.testing.assert_close(
                value["momentum_buffer"], expected["state"][key]["momentum_buffer"], atol=1e-10, rtol=0
            )
