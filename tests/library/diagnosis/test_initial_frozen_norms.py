"""Frozen norms that never had statistics are found; those of a checkpoint, and batch norms, are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchvision
from torch import nn

import normless as nl
from normless.nn import FrozenBatchNorm

FROZEN: dict[str, Callable[[int], nn.Module]] = {
    "torchvision": torchvision.ops.FrozenBatchNorm2d,
    "ours": FrozenBatchNorm,
    "batch norm": nn.BatchNorm2d,
}


def network(norm: Callable[[int], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("has_statistics", [False, True])
@pytest.mark.parametrize("name", FROZEN)
def test_initial_statistics_of_frozen_norms_are_a_finding(name: str, has_statistics: bool) -> None:
    model = network(FROZEN[name])
    if has_statistics:
        model[1].running_mean.fill_(0.3)
    batch = (torch.randn(16, 3, 8, 8), torch.arange(16) % 2)
    found = nl.diagnose(model, batch, optimizer=torch.optim.SGD(model.parameters(), 0.1))
    kinds = {one.kind: one for one in found.findings}
    assert ("initial_frozen_norms" in kinds) == (name != "batch norm" and not has_statistics)
    if "initial_frozen_norms" in kinds:
        assert "1" in kinds["initial_frozen_norms"].where
