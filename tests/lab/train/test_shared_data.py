"""Runs of one process share the data they load, and the results of each are those it has alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from normless_lab.train.config import TrainConfig
from normless_lab.train.image_task import ImageTask
from normless_lab.train.training_run import train

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


@pytest.mark.slow
def test_a_run_after_another_has_the_results_it_has_alone(tmp_path: Path) -> None:
    config = replace(CONFIG, data="digits(train=256)", batch_size=64)

    def rows(directory: str) -> list[tuple[float, float]]:
        return [(row.training_loss, row.test_loss) for row in train(config, tmp_path / directory).epochs]

    alone = rows("alone")
    train(replace(config, seed=5, flip=True, cutout=3, mixup=0.5), tmp_path / "between")
    assert rows("after") == alone
