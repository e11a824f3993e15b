"""Calls of public functions keep no memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from borrowed import live_tensors
from torch import Tensor, nn

import normless as nl
from normless._internal.copying import copied
from normless.models import resnet_cifar

SIZE, CALLS = 8, 200


@cache
def network() -> nn.Module:
    torch.manual_seed(0)
    return resnet_cifar(8)


@cache
def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(SIZE, 3, 16, 16), torch.arange(SIZE) % 10


@cache
def mapped() -> nl.ResidualMap:
    return nl.residual_map(network(), batch()[0])


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01)


def stepped(
    prepare: Callable[[nn.Module, torch.optim.Optimizer], Any], *, closes: bool = False
) -> Callable[[], None]:
    """A step of a copy that something watches or changes, which is closed or forgotten."""

    def call() -> None:
        model = copied(network())
        optimizer = optimizer_of(model)
        prepared = prepare(model, optimizer)
        with prepared if closes else nullcontext():
            F.cross_entropy(model(batch()[0]), batch()[1]).backward()
            optimizer.step()
            optimizer.zero_grad()

    return call


def ridden_along() -> None:
    ride = nl.RideAlong(("signal", "gradients"), when=lambda step: True)
    with ride.during(1, network(), mapped()):
        F.cross_entropy(network()(batch()[0]), batch()[1]).backward()
    network().zero_grad()
    assert len(ride.tables())


def saved_in(folder: Path) -> Callable[[], object]:
    return lambda: nl.save(converted(), folder / "saved")


@cache
def converted() -> nn.Module:
    return nl.convert(network(), "skipinit", batch()[0])


def loaded_from(folder: Path) -> Callable[[], object]:
    nl.save(converted(), folder / "saved")
    return lambda: nl.load(folder / "saved", model=network())


@cache
def with_group_norms() -> nn.Module:
    return nl.convert(network(), "group_norm", batch()[0])


def removed() -> None:
    model = copied(with_group_norms())
    removal = nl.remove_norms(model, batch()[0], start=1, interval=1)
    optimizer = optimizer_of(model)
    for _ in range(3):
        removal.loss(F.cross_entropy(model(batch()[0]), batch()[1])).backward()
        optimizer.step()
        optimizer.zero_grad()
        removal.step()


# What holds or copies a network, watches it or writes it.
CALLED: dict[str, Callable[[], object]] = {
    "residual_map": lambda: nl.residual_map(network(), batch()[0]),
    "convert": lambda: nl.convert(network(), "fixup", batch()[0]),
    "convert_trained": lambda: nl.convert_trained(network(), "none", batch()[0]),
    "diagnose": lambda: nl.diagnose(network(), batch(), trial_steps=2),
    "diagnose_trained": lambda: nl.diagnose_trained(network(), [batch()]),
    "treat": lambda: nl.treat(network(), batch(), scheme="fixup"),
    "watch": stepped(lambda model, _: nl.watch(model, interval=1), closes=True),
    "watch, not closed": stepped(lambda model, _: nl.watch(model, interval=1)),
    "probe": lambda: nl.probe(network(), batch(), ("signal", "backward", "gradients", "logits")),
    "RideAlong": ridden_along,
    "mixes_examples": lambda: nl.mixes_examples(network(), batch()[0]),
    "fold": lambda: nl.fold(copied(network()).eval(), batch()[0]),
    "freeze": lambda: nl.freeze(network()),
    "param_groups": lambda: nl.param_groups(network(), batch()[0], lr=0.1, weight_decay=1e-4),
    "remove_norms": removed,
}
OF_FILES: dict[str, Callable[[Path], Callable[[], object]]] = {"save": saved_in, "load": loaded_from}


@pytest.fixture(params=[*CALLED, *OF_FILES])
def call(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], object]]:
    name = request.param
    yield CALLED[name] if name in CALLED else OF_FILES[name](tmp_path)
    gc.enable()


def test_calls_keep_no_tensors(call: Callable[[], object]) -> None:
    call()
    before = live_tensors()
    call()
    assert live_tensors() == before
