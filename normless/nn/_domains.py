"""Batch norms with separate statistics, γ and β for each domain or part of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class DomainBatchNorm(nn.Module):
    """Run the batch norm of the current domain (Chang et al. 2019, DSBN; Xie et al. 2020, AdvProp).

    `norms` are torch's batch norms, one per domain; `domain` is the number of the current domain, which
    `using_domain` sets for a whole network. Shapes: those of the norms.
    """

    def __init__(self, norms: Sequence[nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)
        self.domain = 0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norms[self.domain](x)
        return y

    def extra_repr(self) -> str:
        return f"domain={self.domain}"


class SplitBatchNorm(nn.Module):
    """Normalize parts of a training batch, such as clean and adversarial examples (Xie et al. 2020, AdvProp).

    In training the batch is split into one part per norm, in order, of equal sizes or one example less. Evaluation
    uses the first norm. Shapes: those of the norms.
    """

    def __init__(self, norms: Sequence[nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norms)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            y: Tensor = self.norms[0](x)
            return y
        parts = x.tensor_split(len(self.norms))
        return torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)])


@contextmanager
def using_domain(model: nn.Module, domain: int) -> Iterator[None]:
    """Run the norms of one domain, counted from 0, in all `DomainBatchNorm`s of a network."""
    norms = [module for module in model.modules() if isinstance(module, DomainBatchNorm)]
    fewest = min((len(norm.norms) for norm in norms), default=0)
    if not 0 <= domain < fewest:
        raise ValueError(f"The domains of this {type(model).__name__} are 0 to {fewest - 1}, got {domain}.")
    before = [norm.domain for norm in norms]
    try:
        for norm in norms:
            norm.domain = domain
        yield
    finally:
        for norm, old in zip(norms, before, strict=True):
            norm.domain = old
