"""Recomputed segments against the plain network: gradients, running statistics, random numbers."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from gallery import ROWS
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import wide_resnet

IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def step(network: nn.Module, x: Tensor = IMAGES) -> dict[str, Tensor]:
    """The gradients and buffers after one step's passes, from one random state."""
    torch.manual_seed(1)
    network.zero_grad()
    F.cross_entropy(network(x), torch.arange(len(x)) % 5).backward()
    gradients = {name: one.grad for name, one in network.named_parameters() if one.grad is not None}
    return {**gradients, **{name: one.clone() for name, one in network.named_buffers()}}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("scheme", ["ghost_batch_norm(size=3)", "alternating_batch_norm", "fixup"])
def test_gradients_and_buffers_are_those_of_the_plain_network(scheme: str) -> None:
    torch.manual_seed(0)
    plain = nl.convert(wide_resnet(28, 1, in_channels=1), scheme)
    with torch.no_grad():
        for one in plain.parameters():
            one.add_(0.02 * torch.randn_like(one))
    other = deepcopy(plain)
    names = [name for name, _ in other.named_modules()]
    assert nl.optim.recompute_blocks(other) == 6  # 2√9
    assert [name for name, _ in other.named_modules()] == names
    for _ in range(2):
        same(step(plain), step(other))


def test_dropout_draws_the_same_numbers_twice() -> None:
    plain, (x,) = ROWS["WideResNet"].network(), ROWS["WideResNet"].example()[0]
    other = deepcopy(plain)
    assert nl.optim.recompute_blocks(other, x, segments=2) == 2
    same(step(plain, x), step(other, x))
    state = torch.get_rng_state()
    step(plain, x)
    assert torch.equal(state, torch.get_rng_state())


def test_what_cannot_be_recomputed_stays() -> None:
    network, (x,) = ROWS["ParallelViT"].network(), ROWS["ParallelViT"].example()[0]
    before = str(network)
    with pytest.raises(nl.errors.UnresolvedStructureError, match=r"nn\.Sequential that its forward calls"):
        nl.optim.recompute_blocks(network, x)
    assert str(network) == before
