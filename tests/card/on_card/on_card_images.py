"""Trainings on images, on the simulated card: settings, resumed runs, and no step that waits for the card."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from waits import CARD_TO_CPU, Wait, noted_waits

from normless.probes import RideAlong
from normless.probes.measure import every
from normless_lab.train import RunListener, TrainConfig, train, trained_network
from normless_lab.train.loop import STEPS_BETWEEN_READS, Training
from normless_papers.experiments.image_runs import PaperConfig, PaperResult

pytestmark = pytest.mark.usefixtures("trains_on_card")

CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)",
    scheme="skipinit",
    data="digits(train=256, test=64)",
    batch_size=64,
    epochs=2,
)
# Fused, of ours, and capturable.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "AdamW", "rate": 0.01, "momentum": 0.0},
    "lion": {"optimizer": "Lion", "rate": 0.001, "momentum": 0.0},
    "nadam": {"optimizer": "NAdam", "rate": 0.01, "momentum": 0.0},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "norms": {"scheme": "batch_norm", "recompute": "always"},
    "ghosts": {"scheme": "ghost_batch_norm(size=16)", "recompute": "auto"},
    "calibrated": {"scheme": "lsuv", "weight_decay": 0.0, "label_smoothing": 0.1},
    "micro_batches": {"scheme": "fixup", "micro_batch_size": 24},
    "augmented": {"mixup": 0.4, "cutout": 2, "crop": 1, "flip": True, "clip": 0.01, "dropout": 0.3},
    "double": {"precision": "64-true", "micro_batch_size": 32, "mixup": 0.2},
    "bfloat16": {"precision": "bf16-true"},
    "mixed": {"precision": "bf16-mixed", "scheme": "batch_norm"},
    "vectors": {"model": "normless:dense(depth=2, width=12)", "data": "correlated(train=256, test=64)"},
}


class Stop(RunListener):
    """Ends a run at the end of an epoch, as Ctrl-C does."""

    def on_epoch(self, row: Any) -> None:
        raise KeyboardInterrupt


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return trained_network(folder).state_dict()


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("name", SETTINGS)
def test_two_epochs(tmp_path: Path, name: str) -> None:
    result = train(replace(CONFIG, **SETTINGS[name]), tmp_path)
    assert len(result.epochs) == 2
    assert all(math.isfinite(row.training_loss + row.test_loss) for row in result.epochs)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    config = replace(CONFIG, dropout=0.3, mixup=0.4)
    whole = train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", listeners=[Stop()])
    resumed = train(config, tmp_path / "stopped")
    assert_equal(weights(tmp_path / "whole"), weights(tmp_path / "stopped"))
    assert [row.training_loss for row in whole.epochs] == [row.training_loss for row in resumed.epochs]


@pytest.mark.parametrize("name", ["sgd", *OPTIMIZERS])
def test_a_run_resumed_within_an_epoch_is_the_uninterrupted_one(tmp_path: Path, name: str) -> None:
    config = replace(CONFIG, dropout=0.3, **OPTIMIZERS.get(name, {}))
    train(config, tmp_path / "whole")
    saved = tmp_path / "saved"

    class Fail(RunListener):
        def on_step(self, step: int, loss: float) -> None:
            if step == 7:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, saved, listeners=[Fail()], checkpoint_every="2")
    assert torch.load(saved / "checkpoint.pt", weights_only=True)["within"] is not None
    torch.manual_seed(5)  # What the caller's generators hold must not matter.
    train(config, saved)
    assert_equal(weights(tmp_path / "whole"), weights(saved))


def test_a_run_that_diverges(tmp_path: Path) -> None:
    result = train(replace(CONFIG, scheme="none", rate=1e6), tmp_path)
    assert result.outcome == "diverged"


def test_epochs_doubled_until_plateau(tmp_path: Path) -> None:
    config = PaperConfig(**asdict(CONFIG), epochs_until_plateau=True, max_doublings=1)
    result = train(config, tmp_path)
    assert isinstance(result, PaperResult)
    assert result.doublings <= 1


def test_images_in_files(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for part, label, number in product(("train", "test"), "ab", range(4)):
        folder = tmp_path / "images" / part / label
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (10, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    data, root = "image_folder(size=8, resize=8, workers=0)", str(tmp_path / "images")
    result = train(replace(CONFIG, data=data, data_root=root, batch_size=4, mixup=0.2), tmp_path / "run")
    assert len(result.epochs) == 2


def test_probes_and_a_watch_along_the_way(tmp_path: Path) -> None:
    plain = train(CONFIG, tmp_path / "plain")
    ride = RideAlong(("signal", "activations", "gradients", "logits"), every(2))
    train(CONFIG, tmp_path / "probed", ride_along=ride)
    watched = train(CONFIG, tmp_path / "watched", watch=True)
    assert {path.name for path in (tmp_path / "probed" / "probes").iterdir()} == set(ride.probes)
    assert [row.training_loss for row in plain.epochs] == [row.training_loss for row in watched.epochs]
    assert_equal(weights(tmp_path / "plain"), weights(tmp_path / "probed"))


@pytest.mark.parametrize(
    "settings",
    [{}, {"mixup": 0.4, "cutout": 2, "crop": 1, "flip": True, "clip": 0.01}, *OPTIMIZERS.values()],
    ids=["plain", "augmented", *OPTIMIZERS],
)
def test_no_step_waits_for_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    waits: list[list[Wait]] = []
    original = Training.gradients

    def gradients(self: Training, batch: Any, step: int) -> Any:
        waits.append(notes.copy())
        notes.clear()
        return original(self, batch, step)

    monkeypatch.setattr(Training, "gradients", gradients)
    with noted_waits() as notes:
        train(replace(CONFIG, batch_size=8, epochs=1, dropout=0.2, **settings), tmp_path)
    steps = len(waits)
    assert steps > STEPS_BETWEEN_READS
    # What is noted at the start of a step happened in the one before it: batch, passes and the optimizer's step.
    for step in range(1, steps):
        reads = [wait for wait in waits[step] if wait.direction == CARD_TO_CPU]
        assert len(reads) == (step % STEPS_BETWEEN_READS == 0), (step, reads)
        assert len(waits[step]) == len(reads), waits[step]
