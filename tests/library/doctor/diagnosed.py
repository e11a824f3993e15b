"""Networks and batches of the tests of diagnosis."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import normless as nl
from normless.doctor import Diagnosis
from normless.models import dense


def vectors(examples: int = 32, features: int = 50, classes: int = 10) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(examples, features, generator=generator), torch.arange(examples) % classes


def images(examples: int = 16, side: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(examples, 3, side, side, generator=generator), torch.arange(examples) % 10


def diagnose(network: nn.Module, batch: object, **options: object) -> Diagnosis:
    """A diagnosis whose cures are proposed and not tried, if nothing else is said."""
    return nl.diagnose(network, batch, **({"trial_steps": 0} | options))  # type: ignore[arg-type]


def kinds(diagnosis: Diagnosis) -> list[str]:
    return [finding.kind for finding in diagnosis.findings]


def narrow(depth: int, **arguments: object) -> nn.Module:
    torch.manual_seed(0)
    return dense(depth, 50, in_features=50, **arguments)  # type: ignore[arg-type]
