"""One module at several places: each place gets its own, and the network is that of separate modules."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import UnsupportedEditError
from normless.nn import ResidualSum

X = torch.randn(5, 4)
close = torch.testing.assert_close


class Add(nn.Module):
    """As tsai adds."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.add(y)


class Adding(nn.Module):
    """Two sums by one module."""

    def __init__(self, add: nn.Module) -> None:
        super().__init__()
        self.add = add
        self.one, self.two = (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        x = self.add(x, self.one(x))
        return self.add(self.two(x), x)


class AddingInLoop(Adding):
    """One call of it adds twice."""

    def forward(self, x: Tensor) -> Any:
        for branch in (self.one, self.two):
            x = self.add(x, branch(x))
        return x


@pytest.mark.parametrize(("kind", "is_one"), [(Adding, False), (Adding, True), (AddingInLoop, True)])
def test_a_module_that_adds_in_several_sums(kind: type[Adding], is_one: bool) -> None:
    add = Add()
    model: Any = nn.Sequential(nn.Linear(4, 4), kind(add), kind(add if is_one else Add()))
    net = nl.convert(model, "skipinit(alpha=0.3, keep_scale=False)", X)
    h = model[0](X)
    for block in model[1:]:
        for branch in (block.one, block.two):
            h = h + 0.3 * branch[2](branch[0](h))
    close(net(X), h)
    sums = [module for module in net.modules() if isinstance(module, ResidualSum) and module.multiplier is not None]
    assert len({id(total.multiplier) for total in sums}) == 4
    assert [block.name for block in nl.residual_map(net).blocks] == ["1#1", "1#2", "2#1", "2#2"]


class Block(nn.Module):
    """Two activations, of which a function makes one or several modules."""

    def __init__(self, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norm, self.act1, self.act2 = nn.LayerNorm(4), activation(), activation()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return x + self.second(self.act2(self.first(self.act1(self.norm(x)))))


@pytest.mark.parametrize("kind", [nn.SiLU, nn.ReLU])
def test_fixup_has_a_bias_for_every_place_of_one_activation(kind: type[nn.Module]) -> None:
    """Each parameter of one element is at 0.3, and no weight at zero, in the comparison."""
    one, nets, sizes = kind(), [], []
    for make in (lambda: one, kind):
        torch.manual_seed(0)
        net = nl.convert(nn.Sequential(nn.Linear(4, 4), Block(make), Block(make)), "fixup", X)
        for parameter in net.parameters():
            if parameter.numel() == 1:
                nn.init.constant_(parameter, 0.3)
            elif not parameter.any():
                parameter.data.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
        sizes.append(sorted(parameter.numel() for parameter in net.parameters()))
        nets.append(net)
    close(nets[0](X), nets[1](X))
    assert sizes[0] == sizes[1]
    nets[0](X).sum().backward()
    assert all(parameter.grad is not None for parameter in nets[0].parameters())


class Joint(nn.Module):
    """Two streams, and one product that the branches of both read, as in the transformer of Stable Diffusion 3."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(4), nn.LayerNorm(4)
        self.query, self.key, self.left, self.right = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        a, b = x, x.flip(1)
        mixed = torch.softmax(self.query(self.norm1(a)) + self.key(self.norm2(b)), -1)
        return torch.cat([a + self.left(mixed), b + self.right(mixed)], 1)


def test_a_layer_on_two_branches_has_one_bias() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Joint())
    assert all("1.query" in block.branch for block in nl.residual_map(model, X).blocks)
    net: Any = nl.convert(model, "fixup", X)
    biased = [name for name, _ in net.named_parameters() if name.endswith("input_bias")]
    assert biased.count("1.query.input_bias") == biased.count("1.key.input_bias") == 1
    close(net(X), torch.cat([net[0](X), net[0](X).flip(1)], 1))


class PixelNorm(nn.Module):
    """As the U-Net of Karras et al. (2024) normalizes."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * x.shape[-1] ** 0.5  # type: ignore[no-any-return]


class NormsQueriesAndKeys(nn.Module):
    """Attention whose queries, keys and values pass one norm, by `map`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.packed, self.out = PixelNorm(), nn.Linear(4, 12), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        q, k, v = map(self.norm, self.packed(x).chunk(3, -1))
        return x + self.out((q @ k.mT).softmax(-1) @ v)


def unit_length(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


class CosineAttention(nn.Module):
    """Attention of queries and keys of unit length, as in the UViT of Hoogeboom et al. (2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.packed, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
        self.q_scale, self.k_scale = (nn.Parameter(torch.rand(4) + 1) for _ in range(2))

    def of_unit_length(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = map(unit_length, (q, k))
        return q, k

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.packed(x).chunk(3, -1)
        q, k = self.of_unit_length(q, k)
        q, k = q * self.q_scale, k * self.k_scale
        return x + self.out((q @ k.mT).softmax(-1) @ v)


class ByMethod(CosineAttention):
    def unit_length(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=-1, keepdim=True)  # type: ignore[no-any-return]

    def of_unit_length(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = map(self.unit_length, (q, k))
        return q, k


@pytest.mark.parametrize("kind", [NormsQueriesAndKeys, CosineAttention, ByMethod])
def test_norms_of_one_place_are_removed_together(kind: Callable[[], nn.Module]) -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4), kind())
    mapped = nl.residual_map(model, X)
    directed = kind is not NormsQueriesAndKeys
    assert (["1:q_scale", "1:k_scale"] if directed else ["1.norm"]) == list(mapped.directions or mapped.norms)
    net = nl.convert(model, "skipinit(alpha=0.5, keep_scale=False, norms='all')", X, residual_map=mapped)
    h = model[0](X)
    # The factor 1/√4 of a direction in four dimensions stays for each.
    q, k, v = model[1].packed(h).chunk(3, -1)
    expected = h + 0.5 * model[1].out((q @ k.T / (4 if directed else 1)).softmax(-1) @ v)
    for one in (net, deepcopy(net)):
        close(one(X), expected)


class NormAtTop(nn.Module):
    """The same line normalizes what the branch reads and, in its second turn, what the classifier reads."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.head = (nn.Linear(4, 4) for _ in range(3))
        self.inner, self.top = (nn.Parameter(torch.rand(4) + 1) for _ in range(2))

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        for scale in (self.inner, self.top):
            normed = unit_length(x) * scale
            if scale is self.inner:
                x = x + self.branch(normed).relu()
        return self.head(normed)


def test_a_norm_that_stays_keeps_its_code() -> None:
    """Bjorck et al.'s norm at the top, which the code of the others computes too, is not silently lost."""
    model = NormAtTop()
    assert list(nl.residual_map(model, X).norms) == [":inner", ":top"]
    with pytest.raises(UnsupportedEditError, match="the same code computes :top, which stays"):
        nl.convert(model, "only_top_norm", X)
