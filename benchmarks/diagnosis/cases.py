"""The cases of the benchmark of diagnosis: networks that do not train, each with its cause, and healthy ones.

A case is a network, a batch and an optimizer. Its causes are kinds of findings that name the truth, most fitting
first; a healthy network has none. Cases that are kept aside are not looked at while the checks are written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from benchmarks.diagnosis.networks import Batch, images
from normless.probes import Loss

Network = TypeVar("Network", bound=nn.Module)
Build = TypeVar("Build", bound=Callable[[], nn.Module])
MakeOptimizer = Callable[[Any], Optimizer]


class Patient(NamedTuple):
    """The arguments of a diagnosis; without an optimizer, none is handed over."""

    model: nn.Module
    batch: tuple[Tensor, Tensor]
    optimizer: Optimizer | None = None
    loss: Loss = F.cross_entropy


@dataclass(frozen=True)
class Case:
    """A network, the batch and the optimizer it is trained with, and its truth."""

    name: str
    build: Callable[[], nn.Module]
    batch: Batch
    optimizer: MakeOptimizer | None
    causes: tuple[str, ...]
    loss: Loss
    aside: bool

    def make(self) -> Patient:
        """Build it anew, the same each time."""
        torch.manual_seed(0)
        model = self.build()
        return Patient(model, self.batch(), self.optimizer(model) if self.optimizer else None, self.loss)

    @property
    def healthy(self) -> bool:
        """Whether it trains."""
        return not self.causes


CASES: dict[str, Case] = {}


def add(
    name: str,
    build: Callable[[], nn.Module],
    batch: Batch,
    optimizer: MakeOptimizer | None,
    *causes: str,
    loss: Loss = F.cross_entropy,
    aside: bool = False,
) -> None:
    """Add a case."""
    assert name not in CASES
    CASES[name] = Case(name, build, batch, optimizer, causes, loss, aside)


def case(
    *causes: str, batch: Batch = images, optimizer: MakeOptimizer | None = None, aside: bool = False
) -> Callable[[Build], Build]:
    """Add a case of the network that a function or a class builds, by its name."""

    def added(build: Build) -> Build:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", build.__name__).lower()
        add(name, build, batch, optimizer, *causes, aside=aside)
        return build

    return added


def sgd(lr: float = 0.05, momentum: float = 0.9, weight_decay: float = 5e-4) -> MakeOptimizer:
    """SGD of all parameters, as usual."""
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)


def adamw(lr: float = 1e-3, weight_decay: float = 0.01) -> MakeOptimizer:
    """AdamW of all parameters, as usual."""
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)


@torch.no_grad()
def each(kind: type[nn.Module], change: Callable[[Any], object], network: Network) -> Network:
    """A network after a change of every module of a kind."""
    for module in network.modules():
        if isinstance(module, kind):
            change(module)
    return network
