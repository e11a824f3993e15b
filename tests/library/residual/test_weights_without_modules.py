"""Branches that end in a learned matrix of the block itself, and routed experts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.edits import ZeroBranchEnds
from normless.errors import UnsupportedEditError


class Bare(nn.Module):
    """x + f(x) whose last weight is a parameter of the block."""

    def __init__(self, apply: Callable[[Bare, Tensor], Tensor]) -> None:
        super().__init__()
        self.apply_last = apply
        self.norm, self.first = nn.LayerNorm(8), nn.Linear(8, 8)
        self.W, self.c = nn.Parameter(torch.randn(8, 8) / 3), nn.Parameter(torch.randn(8))
        self.out_weight = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.apply_last(self, torch.relu(self.first(self.norm(x))))


LAST: dict[str, Callable[[Bare, Tensor], Tensor]] = {
    "linear": lambda block, h: F.linear(h, block.W),
    "linear with a bias": lambda block, h: F.linear(h, block.W, block.c),
    "product": lambda block, h: h @ block.W,
    "einsum": lambda block, h: torch.einsum("bi,io->bo", h, block.W),
    "named as a weight": lambda block, h: h @ block.out_weight.mT,
}


@pytest.mark.parametrize("name", LAST)
def test_zeroed_ends_of_branches_and_refusals_in_sentences(name: str) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Bare(LAST[name]), nn.Linear(8, 3)), torch.randn(4, 8)
    net = nl.convert(model, nl.Scheme("zeroed", (ZeroBranchEnds(),)), x)
    torch.testing.assert_close(net(x), model[2](model[0](x)))
    skipinit = nl.convert(model, "skipinit(keep_scale=False)", x)
    torch.testing.assert_close(skipinit(x), model[2](model[0](x)))
    for scheme in ("fixup", "layer_scale", "nf_resnet", "lsuv"):
        with pytest.raises(UnsupportedEditError, match=rf"{scheme} is not possible.* at 1"):
            nl.convert(model, scheme, x)


class Router(nn.Module):
    """The two best of four experts; their shares are scaled in place, and a permutation is written by index."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(8), nn.Linear(8, 4)
        self.experts = nn.Parameter(torch.randn(4, 8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        shares, chosen = torch.topk(F.softmax(self.gate(h), -1), 2, dim=-1)
        shares /= shares.sum(-1, keepdim=True)
        order = chosen.argsort(-1)
        inverse = torch.empty_like(order)
        inverse.scatter_(-1, order, torch.arange(2).expand_as(order))
        shares = shares.gather(-1, order).gather(-1, inverse)
        y = torch.einsum("bi,eio->beo", torch.relu(h), self.experts)
        picked = y.gather(1, chosen[..., None].expand(-1, -1, 8))
        return x + (shares[..., None] * picked).sum(1)


def test_indices_and_results_of_their_own_are_no_writes_into_a_part() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Router(), Router(), nn.Linear(8, 3)), torch.randn(4, 8)
    mapped = nl.residual_map(model, x)
    assert (mapped.depth, mapped.unresolved) == (2, ())
    assert nl.convert(model, "none", x)(x).isfinite().all()
