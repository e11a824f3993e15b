"""Trainings on text and on translation, on the simulated card."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from waits import Wait, noted_waits

import normless
from normless.probes import RideAlong
from normless.probes.measure import every
from normless_lab.train import RunListener, train
from normless_lab.train.config import RunConfig
from normless_lab.train.loop import STEPS_BETWEEN_READS, Training
from normless_lab.train.run_files import load_weights
from normless_papers.text import TextConfig, TranslationConfig

pytestmark = pytest.mark.usefixtures("trains_on_card")

TEXT = TextConfig(
    model="transformers:bert(num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16)",
    data="sentiment(train=64, test=16)",
    vocabulary=300,
    batch_size=16,
    epochs=2,
)
TRANSLATION = TranslationConfig(
    model="normless:transformer(layers=1, width=16, heads=2, feed_forward=16, dropout=0.2)",
    data="grammar(train=40, validation=2, test=2)",
    vocabulary=120,
    batch_tokens=600,
    epochs=2,
    warmup_steps=2,
    longer_by=2,
    beam_width=2,
)
CASES = {
    "text-micro_batches": replace(TEXT, scheme="fixup", micro_batch_size=6),
    "text-mixed": replace(TEXT, precision="bf16-mixed", clip=None, weight_decay=0.0),
    "translation-micro_batches": replace(TRANSLATION, scheme="fixup", micro_batch_tokens=200, clip=0.1),
    "translation-mixed": replace(TRANSLATION, precision="bf16-mixed", weight_decay=0.1),
}
BOTH = pytest.mark.parametrize("config", [TEXT, TRANSLATION], ids=["text", "translation"])


class Fail(RunListener):
    """Ends a run at a step, as Ctrl-C does."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, step: int, loss: float) -> None:
        if step == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("config", CASES.values(), ids=CASES)
def test_two_epochs(tmp_path: Path, config: RunConfig) -> None:
    result: Any = train(config, tmp_path)  # type: ignore[call-overload]
    assert len(result.epochs) == 2
    assert all(math.isfinite(row.training_loss) for row in result.epochs)
    assert math.isfinite(result.test_loss)


@BOTH
def test_a_run_resumed_within_an_epoch_is_the_uninterrupted_one(tmp_path: Path, config: RunConfig) -> None:
    train(config, tmp_path / "whole")  # type: ignore[call-overload]
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", listeners=[Fail(3)], checkpoint_every="2")  # type: ignore[call-overload]
    assert torch.load(tmp_path / "stopped" / "checkpoint.pt", weights_only=True)["within"] is not None
    train(config, tmp_path / "stopped")  # type: ignore[call-overload]
    whole, resumed = (load_weights(tmp_path / name / "checkpoint.pt") for name in ("whole", "stopped"))
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


@BOTH
def test_probes_and_a_watch_along_the_way(tmp_path: Path, config: RunConfig) -> None:
    ride = RideAlong(("signal", "activations", "gradients", "logits"), every(2))
    train(config, tmp_path, ride_along=ride, watch=True)  # type: ignore[call-overload]
    assert {path.name for path in (tmp_path / "probes").iterdir()} == set(ride.probes)


@BOTH
def test_a_run_that_diverges(tmp_path: Path, config: RunConfig) -> None:
    result: Any = train(replace(config, rate=1e30), tmp_path)  # type: ignore[call-overload]
    assert result.outcome == "diverged"


@BOTH
def test_no_step_waits_for_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: RunConfig) -> None:
    waits: list[list[Wait]] = []
    original = Training.gradients

    def gradients(self: Training, batch: Any, step: int) -> Any:
        waits.append(notes.copy())
        notes.clear()
        return original(self, batch, step)

    monkeypatch.setattr(Training, "gradients", gradients)
    with noted_waits() as notes:
        train(config, tmp_path)  # type: ignore[call-overload]
    epoch = len(waits) // 2
    assert 2 <= epoch < STEPS_BETWEEN_READS
    ours = str(Path(normless.__file__).parent)
    for step in range(len(waits)):
        if step % epoch:
            # transformers reads the mask of padding.
            assert not [wait for wait in waits[step] if wait.place.startswith(ours)], (step, waits[step])
