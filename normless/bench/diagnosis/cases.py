"""The cases of the benchmark of diagnosis: networks that do not train, each with its cause, and healthy ones.

A case's causes are kinds of findings that name the truth, most fitting first; a healthy network has none. Cases that
are kept aside are not looked at while the checks are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from normless.probes import Loss


class Patient(NamedTuple):
    """The arguments of a diagnosis; without an optimizer, none is handed over."""

    model: nn.Module
    batch: tuple[Tensor, Tensor]
    optimizer: Optimizer | None = None
    loss: Loss = F.cross_entropy


@dataclass(frozen=True)
class Case:
    """A network with its truth; `make` builds it anew, the same each time."""

    name: str
    causes: tuple[str, ...]
    aside: bool
    make: Callable[[], Patient]

    @property
    def healthy(self) -> bool:
        """Whether it trains."""
        return not self.causes


CASES: dict[str, Case] = {}


def case(*causes: str, aside: bool = False) -> Callable[[Callable[[], Patient]], Callable[[], Patient]]:
    """Add the patient that a function builds, by the function's name."""

    def added(build: Callable[[], Patient]) -> Callable[[], Patient]:
        def make() -> Patient:
            torch.manual_seed(0)
            return build()

        name = build.__name__
        assert name not in CASES
        CASES[name] = Case(name, causes, aside, make)
        return build

    return added


def sgd(model: nn.Module, lr: float = 0.05, momentum: float = 0.9, weight_decay: float = 5e-4) -> Optimizer:
    """SGD of all parameters, as usual."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)


def adamw(model: nn.Module, lr: float = 1e-3, weight_decay: float = 0.01) -> Optimizer:
    """AdamW of all parameters, as usual."""
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
