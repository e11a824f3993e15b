"""Optimizers made before and after a network is sharded by FSDP2, and what refuses such a network."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

import normless as nl
from normless.models import resnet_cifar

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3)), (8, 20)),
    "convolutions": (lambda: resnet_cifar(8, classes=3), (8, 3, 16, 16)),
}


def sharded(model: nn.Module, first_only: bool = False) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(next(model.children()) if first_only else model, mesh=mesh)
    return model


def train(model: nn.Module, optimizer: Optimizer, watch: nl.doctor.Watch, x: Tensor, y: Tensor) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(6):
            optimizer.zero_grad()
            watch.loss(F.cross_entropy(model(x), y)).backward()
            optimizer.step()
    return [one.kind for one in watch.findings]


def kinds_of(made: str, name: str, first_only: bool = False) -> tuple[list[str], list[str]]:
    """What diagnosis and watch find with an optimizer made before or after sharding."""
    torch.manual_seed(0)
    build, shape = NETWORKS[name]
    model, x, y = build(), torch.randn(shape), torch.arange(shape[0]) % 3
    watch = nl.watch(model, 2)
    before = AdamW(model.parameters(), 1e-3)
    sharded(model, first_only)
    optimizer = before if made == "before" else AdamW(model.parameters(), 1e-3)
    found = [one.kind for one in nl.diagnose(model, (x, y), optimizer=optimizer).findings]
    return found, train(model, optimizer, watch, x, y)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("first_only", [False, True])
def test_an_optimizer_from_before_is_stale_and_one_from_afterwards_is_not(name: str, first_only: bool) -> None:
    found, seen = kinds_of("before", name, first_only)
    assert found == ["untrained_parameters"]
    # One that still holds some of the weights trains those.
    assert seen == ([] if first_only else ["untrained_parameters"])
    assert kinds_of("after", name, first_only) == ([], [])


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", NETWORKS)
def test_what_copies_a_network_refuses_a_sharded_one_with_the_way_out(name: str) -> None:
    build, shape = NETWORKS[name]
    model, x = sharded(build()), torch.randn(shape)
    # Its own networks state their structure, which needs no export.
    calls = (lambda: nl.convert(model, "none", x), lambda: nl.plan(model, "none", x), lambda: nl.fold(model, x))
    for refuses in (*calls, lambda: nl.residual_map(nn.Sequential(model), x)):
        with pytest.raises(ValueError, match="sharded"):
            refuses()
