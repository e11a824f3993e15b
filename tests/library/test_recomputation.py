"""Recomputed segments against the plain network: gradients, running statistics, random numbers, memory."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import wide_resnet
from normless.nn import GhostBatchNorm2d

IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6)


def step(network: nn.Module) -> dict[str, Tensor]:
    """The gradients and buffers after one step's passes, from one random state."""
    torch.manual_seed(1)
    network.zero_grad()
    F.cross_entropy(network(IMAGES), LABELS).backward()
    gradients = {name: one.grad for name, one in network.named_parameters() if one.grad is not None}
    return {**gradients, **{name: one.clone() for name, one in network.named_buffers()}}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("scheme", ["ghost_batch_norm(size=3)", "alternating_batch_norm", "fixup"])
def test_gradients_and_buffers_are_those_of_the_plain_network(scheme: str) -> None:
    torch.manual_seed(0)
    plain = nl.convert(wide_resnet(28, 1, in_channels=1), scheme)
    with torch.no_grad():
        for one in plain.parameters():
            one.add_(0.02 * torch.randn_like(one))
    other = deepcopy(plain)
    names = [name for name, _ in other.named_modules()]
    assert nl.recompute_blocks(other) == 6  # 2√9
    assert [name for name, _ in other.named_modules()] == names
    for _ in range(2):
        same(step(plain), step(other))


class Dropping(nn.Module):
    """A block with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(4, 4, 3, padding=1), GhostBatchNorm2d(4, 2), nn.Dropout(0.4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(torch.relu(self.norm(self.conv(x))))


class Traced(nn.Module):
    """A network that does not state its structure;."""

    def __init__(self, count: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 1)
        self.stages = nn.Sequential(*(Dropping() for _ in range(count)))
        self.head = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def test_dropout_draws_the_same_numbers_twice() -> None:
    torch.manual_seed(0)
    plain = Traced()
    other = deepcopy(plain)
    assert nl.recompute_blocks(other, IMAGES, segments=2) == 2
    same(step(plain), step(other))
    state = torch.get_rng_state()
    step(plain)
    assert torch.equal(state, torch.get_rng_state())


def test_buffers_that_decide_the_output_are_those_of_the_first_pass() -> None:
    torch.manual_seed(0)
    plain = wide_resnet(16, 1, in_channels=1)
    for module in list(plain.modules()):
        if isinstance(module, nn.Conv2d):
            torch.nn.utils.parametrizations.spectral_norm(module)
    other = deepcopy(plain)
    assert nl.recompute_blocks(other, segments=1) == 1
    for _ in range(2):
        same(step(plain), step(other))


class Listed(Traced):
    """Blocks that forward code calls one by one."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.stages:
            x = block(x)
        return self.head(x.mean((2, 3)))


def test_what_cannot_be_recomputed_is_refused_and_stays() -> None:
    network = Listed()
    with pytest.raises(nl.UnresolvedStructureError, match=r"nn\.Sequential that its forward calls"):
        nl.recompute_blocks(network, IMAGES)
    assert type(network.stages) is nn.Sequential
    with pytest.raises(ValueError, match="segments to be 1 or more"):
        nl.recompute_blocks(network, IMAGES, segments=0)
