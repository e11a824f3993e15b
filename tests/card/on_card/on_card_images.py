"""Trainings on images, on the simulated card."""

from __future__ import annotations

from pathlib import Path

import pytest

from normless.train import TrainConfig, train

pytestmark = pytest.mark.usefixtures("trains_on_card")

CONFIG = TrainConfig(model="normless:wide_resnet(depth=10, width=1)", scheme="skipinit", batch_size=512, epochs=2)


def test_two_epochs(tmp_path: Path) -> None:
    result = train(CONFIG, tmp_path)
    assert len(result.epochs) == 2
    assert result.outcome != "diverged"
