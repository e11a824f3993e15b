"""Runs of one process share the data they load, and the results of each are those it has alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from normless_lab.train.config import TrainConfig
from normless_lab.train.image_task import ImageTask

CONFIG = TrainConfig(model="normless:wide_resnet(depth=10, width=1)", data="digits", epochs=1, device="cpu")


def test_the_same_data_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = ImageTask(CONFIG).data
    assert ImageTask(replace(CONFIG, seed=1, rate=0.2)).data is first
    other = ImageTask(replace(CONFIG, data="digits(train=100)")).data
    assert other is not first
    assert other.train_size == 100
    assert ImageTask(replace(CONFIG, data_root=str(tmp_path))).data is not first
    monkeypatch.setenv("NORMLESS_DATA", str(tmp_path / "moved"))
    assert ImageTask(CONFIG).data is not first
