"""Rows of single checks: small trainings of which `diagnose` without trial steps, unless said, names one thing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer

from tests.faults.catalogue import Training, row_of_kinds

Function = Callable[..., Any]
Make = Callable[[], Training]


def given(
    model: nn.Module,
    x: Any,
    y: Any,
    loss: Function | None = F.cross_entropy,
    optimizer: Optimizer | Function | None = None,
    **options: Any,
) -> Training:
    """Return a training without a measure of success; `optimizer` may be a function of the network."""
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        optimizer = optimizer(model)
    return Training(model, (x, y), loss, optimizer, lambda: float("nan"), options={"trial_steps": 0} | options)


def check(name: str, kind: str | tuple[str, ...], make: Make, twin: Make | None = None, says: str = "") -> None:
    """Add a row whose broken training has a finding of one of these kinds first; without kinds it is healthy."""
    kinds = (kind,) if isinstance(kind, str) else kind
    row_of_kinds(name, tuple(filter(None, kinds)), "seen", make, twin, says)


def checks(make: Callable[..., Training], rows: dict[str, tuple[Any, ...]], says: str = "") -> None:
    """Add a row of each entry (kind, arguments of `make`, those of the twin if there is one, what it says if any).

    Arguments are a tuple, or one that is none.
    """
    for name, (kind, *rest) in rows.items():
        *arguments, words = rest if isinstance(rest[-1], str) and len(rest) > 1 else (*rest, says)
        made = [lambda value=value: make(*value if isinstance(value, tuple) else (value,)) for value in arguments]
        check(name, kind, made[0], made[1] if len(made) > 1 else None, words)


def numbers(examples: int = 48, features: int = 12, classes: int = 6, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Normal numbers and classes that do not depend on them."""
    source = torch.Generator().manual_seed(seed)
    return torch.randn(examples, features, generator=source), torch.arange(examples) % classes


def layers(*widths: int, act: Callable[[], nn.Module] = nn.ReLU, last: tuple[nn.Module, ...] = ()) -> nn.Sequential:
    """Linear layers of these widths with activations between them, drawn from seed 0."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), act()]
    return nn.Sequential(*parts[:-1], *last)


def adam(rate: float = 1e-2) -> Callable[[nn.Module], Optimizer]:
    """Adam of all parameters."""
    return lambda model: Adam(model.parameters(), rate)


def bits(count: int, *shape: int) -> Tensor:
    """Zeros and ones from seed 1."""
    return torch.randint(0, 2, (count, *shape), generator=torch.Generator().manual_seed(1)).float()
