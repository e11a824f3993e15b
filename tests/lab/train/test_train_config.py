"""The configuration of a run: its hash, and which settings are a part of its identity."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from normless_lab.train import TrainConfig

# Settings by which the same run is executed elsewhere, or in another way.
PLACE = ("data_root", "device", "recompute", "strategy", "graph")


def test_ghost_batch_size_chooses_ghost_batch_norm() -> None:
    assert TrainConfig(ghost_batch_size=16).scheme_text == "ghost_batch_norm(size=16)"


@pytest.mark.parametrize("field", [field.name for field in fields(TrainConfig)])
def test_hash_depends_on_every_setting_but_the_place(field: str) -> None:
    other: dict[str, Any] = {"model": "normless:resnet_cifar(depth=20)", "scheme": "fixup", "data": "cifar10"}
    other |= {"data_root": "elsewhere", "micro_batch_size": 2, "ghost_batch_size": 32, "schedule": "cosine"}
    other |= {"decay_policy": "all", "precision": "bf16-mixed", "device": "cpu", "recompute": "auto", "devices": 2}
    other |= {"strategy": "fsdp2", "compile": True, "graph": "never", "sync_batch_norm": True, "nesterov": True}
    other |= {"optimizer": "SGD(dampening=0.25)", "flip": True, "cutout": 3, "crop": 3, "batch_size": 32}
    other |= {"epochs": 7, "warmup_epochs": 3, "seed": 9}
    changed = replace(TrainConfig(), **{field: other.get(field, 0.25)})
    assert (changed.hash == TrainConfig().hash) == (field in PLACE)
