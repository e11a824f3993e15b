"""Rows of the kinds of findings: networks that do not train, each with its causes, and healthy ones, without twins.

Causes are kinds of findings that name the truth, most fitting first; a healthy network has none. Rows that are kept
aside were not looked at while the checks were written; they are in the half `held`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from tests.faults.catalogue import Training, row_of_kinds
from tests.faults.kinds.networks import Batch, images
from tests.faults.training import MakeOptimizer, call

Build = Callable[[], nn.Module]


def add(
    name: str,
    build: Build,
    batch: Batch,
    optimizer: MakeOptimizer | None,
    *causes: str,
    loss: Callable[..., Tensor] = F.cross_entropy,
    aside: bool = False,
) -> None:
    """Add a row."""

    def make() -> Training:
        model = build()
        given = batch()
        return Training(model, given, loss, optimizer(model) if optimizer else None, lambda: lowered(model))

    @torch.no_grad()
    def lowered(model: nn.Module) -> float:
        """Return the share of the loss at the start that was lost since."""
        mode = model.training
        torch.manual_seed(0)
        fresh = make()
        inputs, targets = fresh.batch
        before, after = (float(loss(call(one.train(), inputs), targets)) for one in (fresh.model, model))
        model.train(mode)
        return 1 - after / before

    make.__module__, make.__doc__ = __name__, build.__doc__
    row_of_kinds(name, causes, "held" if aside else "seen", make)


def case(*causes: str, batch: Batch = images, optimizer: MakeOptimizer | None = None, aside: bool = False) -> Any:
    """Add a row of the network that a class or a function builds, by its name."""

    def added(build: Build) -> Build:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", build.__name__).lower()
        add(name, build, batch, optimizer, *causes, aside=aside)
        return build

    return added


def sgd(lr: float = 0.05, momentum: float = 0.9, weight_decay: float = 5e-4) -> MakeOptimizer:
    """SGD of all parameters, as usual."""
    return lambda model: SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)


def adamw(lr: float = 1e-3, weight_decay: float = 0.01) -> MakeOptimizer:
    """AdamW of all parameters, as usual."""
    return lambda model: AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)


@torch.no_grad()
def each(kind: type[nn.Module], change: Callable[[Any], object], network: nn.Module) -> nn.Module:
    """Return a network after a change of every module of a kind, itself included."""
    for module in network.modules():
        if isinstance(module, kind):
            change(module)
    return network


def altered(build: Build, change: Callable[[Any], object]) -> Build:
    """Return a function that builds a network and changes it."""

    def built() -> nn.Module:
        network = build()
        with torch.no_grad():
            change(network)
        return network

    return built
