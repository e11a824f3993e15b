"""Trainings on images, text and translation on the simulated card, resumed ones, and steps that wait for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from run_helpers import Interrupt
from waits import CARD_TO_CPU, Wait, noted_waits

import normless
from normless.probes import RideAlong
from normless.probes._measure import every
from normless_lab.train import TrainConfig, train
from normless_lab.train._loop import STEPS_BETWEEN_READS, Training
from normless_lab.train._run_files import load_weights
from normless_papers.text.config import TextConfig, TranslationConfig

pytestmark = pytest.mark.usefixtures("trains_on_card")
run: Callable[..., Any] = train
KINDS: dict[str, Any] = {
    "images": TrainConfig(
        model="normless:wide_resnet(depth=10, width=1)",
        scheme="skipinit",
        batch_size=64,
        epochs=2,
        data="digits(train=256, test=64)",
    ),
    "text": TextConfig(
        model="transformers:bert(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16)",
        data="sentiment(train=64, test=16)",
        vocabulary=300,
        batch_size=16,
        epochs=2,
    ),
    "translation": TranslationConfig(
        model="normless:transformer(layers=1, width=16, heads=2, feed_forward=16, dropout=0.2)",
        data="grammar(train=40, validation=2, test=2)",
        vocabulary=120,
        batch_tokens=600,
        epochs=2,
        warmup_steps=2,
        longer_by=2,
        beam_width=2,
    ),
}
# Fused, and capturable.
ADAMW = {"optimizer": "AdamW", "rate": 0.01, "momentum": 0.0}
NADAM = {"optimizer": "NAdam", "rate": 0.01, "momentum": 0.0}
AUGMENTED = {"mixup": 0.4, "cutout": 2, "crop": 1, "flip": True, "clip": 0.01}
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("images", {"scheme": "batch_norm", "recompute": "always"}),
    ("images", {"scheme": "lsuv", "weight_decay": 0.0, "label_smoothing": 0.1}),
    ("images", {"scheme": "fixup", "micro_batch_size": 24}),
    ("images", {**AUGMENTED, "dropout": 0.3}),
    ("images", {"precision": "64-true", "micro_batch_size": 32, "mixup": 0.2}),
    ("text", {"scheme": "fixup", "micro_batch_size": 6}),
    ("translation", {"scheme": "fixup", "micro_batch_tokens": 200, "clip": 0.1}),
]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_weights(folder / "checkpoint.pt")


def assert_equal(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first
    assert [name for name, value in first.items() if not torch.equal(value, second[name])] == []


@pytest.mark.parametrize(("kind", "settings"), SETTINGS, ids=str)
def test_two_epochs(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    result = run(replace(KINDS[kind], **settings), tmp_path)
    assert len(result.epochs) == 2
    assert all(math.isfinite(row.training_loss) for row in result.epochs)
    assert math.isfinite(result.test_loss)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [("images", {"mixup": 0.4}), ("images", ADAMW), ("text", {}), ("translation", {})],
)
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    drops = {"dropout": 0.3} if kind == "images" else {}
    config, stopped = replace(KINDS[kind], **drops, **settings), tmp_path / "stopped"
    whole = run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, stopped, listeners=[Interrupt(7 if kind == "images" else 3)], checkpoint_every="2")
    torch.manual_seed(5)  # What the caller's generators hold must not matter.
    resumed = run(config, stopped)
    assert_equal(tmp_path / "whole", stopped)
    assert [row.training_loss for row in whole.epochs] == [row.training_loss for row in resumed.epochs]


@pytest.mark.parametrize("kind", KINDS)
def test_probes_and_a_watch_along_the_way(tmp_path: Path, kind: str) -> None:
    ride = RideAlong(("signal", "activations", "gradients", "logits"), every(2))
    run(KINDS[kind], tmp_path / "plain")
    run(KINDS[kind], tmp_path / "observed", ride_along=ride, watch=True, logger=None)
    assert {path.name for path in (tmp_path / "observed" / "probes").iterdir()} == set(ride.probes)
    assert_equal(tmp_path / "plain", tmp_path / "observed")


def waits_of(config: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Wait]]:
    """What is noted at the start of a step: it happened in the one before, batch, passes and the optimizer's step."""
    found: list[list[Wait]] = []
    original = Training.gradients
    with noted_waits() as notes:

        def gradients(self: Training, batch: Any, step: int) -> Any:
            found.append(notes.copy())
            notes.clear()
            return original(self, batch, step)

        monkeypatch.setattr(Training, "gradients", gradients)
        run(config, folder)
    return found


@pytest.mark.parametrize("settings", [AUGMENTED, ADAMW, NADAM], ids=str)
def test_no_step_on_images_waits_for_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    config = replace(KINDS["images"], batch_size=8, epochs=1, dropout=0.2, **settings)
    waits = waits_of(config, tmp_path, monkeypatch)
    assert len(waits) > STEPS_BETWEEN_READS
    for step, noted in list(enumerate(waits))[1:]:
        assert [wait.direction for wait in noted] == [CARD_TO_CPU] * (step % STEPS_BETWEEN_READS == 0), (step, noted)


@pytest.mark.parametrize("kind", ["text", "translation"])
def test_no_step_on_texts_waits_for_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    waits = waits_of(KINDS[kind], tmp_path, monkeypatch)
    epoch = len(waits) // 2
    assert 2 <= epoch < STEPS_BETWEEN_READS
    ours = str(Path(normless.__file__).parent)
    # transformers reads the mask of padding.
    own = [[wait for wait in noted if wait.place.startswith(ours)] for noted in waits]
    assert [noted for step, noted in enumerate(own) if step % epoch and noted] == []
