"""Two processes that share every batch end with the weights of one process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from run_helpers import two_processes
from torch import Tensor

from normless.train import TrainConfig, train
from normless.train.run_files import load_weights

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
NORM_FREE = (
    "none",
    "xavier",
    "sqrt2",
    "lsuv",
    "skipinit",
    "skipinit(alpha=1/sqrt(L))",
    "zeroinit(dropout=0)",
    "fixup",
    "rezero",
    "nf_resnet",
    "weight_standardization",
    "remove_branches",
    "group_norm",
)
PER_BATCH = ("batch_norm", "ghost_batch_norm(size=12)")
PROGRAM = """
import os, signal, sys
from pathlib import Path
from normless.train import TrainConfig, loop, train

original = loop.Training.gradients

def gradients(training, batch, step):
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


def two_ranks(folder: Path, schemes: tuple[str, ...], **options: int) -> subprocess.CompletedProcess[str]:
    """Train by two processes, in `folder/two/NUMBER`; one is lost where `folder/two/lost` exists."""
    program = PROGRAM.format(config=replace(CONFIG, devices=2).to_dict(), schemes=schemes)
    return two_processes(program, folder, **options)


def differences(folder: Path, schemes: tuple[str, ...]) -> Mapping[str, float]:
    """By scheme, the largest difference between a weight after training by two processes and by one."""
    largest = {}
    for number, scheme in enumerate(schemes):
        train(replace(CONFIG, scheme=scheme), folder / "one" / str(number))
        one, two = (load_weights(folder / name / str(number) / "checkpoint.pt") for name in ("one", "two"))
        assert one.keys() == two.keys()
        largest[scheme] = max(_distance(one[name], two[name]) for name in one)
    return largest


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max()) if one.is_floating_point() else 0.0


@pytest.mark.parametrize("norm_free", [("fixup",), pytest.param(NORM_FREE, marks=pytest.mark.slow)], ids=len)
def test_two_ranks_are_one_without_norms_that_mix_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], norm_free: tuple[str, ...]
) -> None:
    per_batch = PER_BATCH[: len(norm_free)]
    schemes = (*norm_free, *per_batch)
    # The first begins in one process.
    train_first_epoch(replace(CONFIG, scheme=schemes[0]), tmp_path / "two" / "0")
    done = two_ranks(tmp_path, schemes)
    assert done.returncode == 0, done.stderr
    largest = differences(tmp_path, schemes)
    if os.environ.get("NORMLESS_TABLES"):
        with capsys.disabled():
            print("", *(f"{scheme:28} {value:.1e}" for scheme, value in largest.items()), sep="\n")  # noqa: T201
    assert all(largest[scheme] <= 1e-10 for scheme in norm_free), largest
    # Each process has the statistics of its own half.
    assert all(1e-5 < largest[scheme] < 1 for scheme in per_batch), largest


def train_first_epoch(config: TrainConfig, folder: Path) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, folder, on_epoch=interrupt)


@pytest.mark.slow
def test_a_lost_rank_ends_the_job_and_the_next_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "lost").touch()
    done = two_ranks(tmp_path, ("fixup",))
    assert not (tmp_path / "two" / "lost").exists()
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL)" in done.stderr
    assert not (tmp_path / "two" / "0" / "result.json").exists()
    done = two_ranks(tmp_path, ("fixup",))
    assert done.returncode == 0, done.stderr
    assert differences(tmp_path, ("fixup",))["fixup"] <= 1e-10


@pytest.mark.slow
def test_torchrun_starts_lost_ranks_again_and_they_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "lost").touch()
    done = two_ranks(tmp_path, ("fixup",), restarts=1)
    assert "Signal 9 (SIGKILL)" in done.stderr or "exitcode: -9" in done.stderr
    assert done.returncode == 0, done.stderr
    assert differences(tmp_path, ("fixup",))["fixup"] <= 1e-10
