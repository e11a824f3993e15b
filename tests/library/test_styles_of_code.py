"""Attention by einsum and dropped paths, styles of code that the gallery lacks, by hand.

A whole conversion with α = 0 leaves the skip paths alone, whatever the weights of the branches; with α = 1 it
computes what `none` does; with α = 0.5 what the network with Gaussian biases does with its norms taken out and its
branches halved, both by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from streams_of_networks import WIDTH, Block, Network
from torch import Tensor, nn

import normless as nl

IMAGES = torch.randn(4, 3, 8, 8)
NORMS = (nn.BatchNorm2d, nn.LayerNorm)


class Attention(nn.Module):
    """Attention by einsum; heads are split by a reshape, or by the layers of einops."""

    def __init__(self, by_einops: bool) -> None:
        super().__init__()
        self.norm, self.to_qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.split, self.merge = rearrangements() if by_einops else (nn.Unflatten(-1, (2, -1)), nn.Flatten(-2))
        self.to_out, self.by_einops = nn.Linear(WIDTH, WIDTH), by_einops

    def forward(self, x: Tensor) -> Any:
        q, k, v = (self.split(part) for part in self.to_qkv(self.norm(x)).chunk(3, -1))
        if not self.by_einops:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        weights = torch.einsum("bhid,bhjd->bhij", q, k).mul(2**-1).softmax(-1)
        mixed = torch.einsum("bhij,bhjd->bhid", weights, v)
        return self.to_out(self.merge(mixed if self.by_einops else mixed.transpose(1, 2)))


def rearrangements() -> tuple[nn.Module, nn.Module]:
    from einops.layers.torch import Rearrange

    return Rearrange("b n (h d) -> b h n d", h=2), Rearrange("b h n d -> b n (h d)")


class EinsumTransformer(nn.Module):
    """A vision transformer whose layers are pairs in a list, as lucidrains writes it."""

    def __init__(self, by_einops: bool) -> None:
        super().__init__()
        self.embed, self.head, mlps = nn.Conv2d(3, WIDTH, 2, 2), nn.Linear(WIDTH, 5), []
        for _ in range(2):
            layers = (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH), nn.Dropout(0.1))
            mlps.append(nn.Sequential(*layers))
        self.layers = nn.ModuleList(nn.ModuleList([Attention(by_einops), mlp]) for mlp in mlps)

    def forward(self, x: Tensor) -> Any:
        x = self.embed(x).flatten(2).transpose(1, 2)
        for attention, feed_forward in self.layers:  # type: ignore[misc]
            x = attention(x) + x  # type: ignore[has-type]
            x = feed_forward(x) + x  # type: ignore[has-type]
        return self.head(x.mean(1))


class Dropping(Block):
    """A random mask on the branch, as timm's function draws it."""

    def f(self, x: Tensor) -> Tensor:
        return self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        y = self.f(x)
        if not self.training:
            return x + y
        mask = y.new_empty((y.shape[0],) + (1,) * (y.ndim - 1)).bernoulli_(0.8)
        mask.div_(0.8)
        return x + y * mask


class DropsByFloor(Dropping):
    """The mask of the first implementation: floor(keep + u), on the branch divided by keep."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.f(x)
        if self.training:
            y = y.div(0.8) * torch.floor(0.8 + torch.rand(len(y), 1, 1, 1))
        return x + y


class DropsByBranching(Dropping):
    """The block is skipped as a whole; in evaluation its branch counts by its probability (Huang et al. 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return x + self.f(x) if torch.rand(()) < 0.8 else x
        return x + 0.8 * self.f(x)


def dropping(block: Callable[[], nn.Module]) -> nn.Module:
    model = Network()
    model.blocks = nn.Sequential(block(), block())
    return model


PARTS = (("0.to_qkv", "0.to_out"), ("1.1", "1.3"))
OF_PAIRS = [[f"layers.{layer}.{part}" for part in parts] for layer in (0, 1) for parts in PARTS]
OF_BLOCKS = [[f"blocks.{index}.{name}" for name in ("conv1", "conv2")] for index in (0, 1)]
# The network, and by hand the weight layers of each branch, the last of which ends it.
STYLES: dict[str, tuple[Callable[[], nn.Module], list[list[str]]]] = {
    "einsum attention": (lambda: EinsumTransformer(False), OF_PAIRS),
    "einops layers": (lambda: EinsumTransformer(True), OF_PAIRS),
    "drop path by a mask": (lambda: dropping(Dropping), OF_BLOCKS),
    "drop path by floor": (lambda: dropping(DropsByFloor), OF_BLOCKS),
    "drop path by branching": (lambda: dropping(DropsByBranching), OF_BLOCKS),
}


@pytest.mark.parametrize("style", STYLES)
def test_blocks_multipliers_and_norms_are_where_a_hand_would_put_them(style: str) -> None:
    if style == "einops layers" and find_spec("einops") is None:
        pytest.skip("einops is not installed")
    build, branches = STYLES[style]
    model = build()
    maps = [nl.residual_map(model.train(training), IMAGES, strict=True) for training in (True, False)]
    for mapped in maps:
        found = [[layer.path for layer in block.branch_layers if layer.kind == "weight"] for block in mapped.blocks]
        assert found == branches
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
    by_hand = deepcopy(model)
    for path, module in list(by_hand.named_modules()):
        if isinstance(module, NORMS):
            by_hand.set_submodule(path, nn.Identity())
    for alpha in (1, 0.5, 0):
        net = nl.convert(model, f"skipinit(alpha={alpha}, keep_scale=False)", IMAGES, residual_map=maps[1]).eval()
        halved = deepcopy(by_hand)
        for *_, last in branches:
            for parameter in halved.get_submodule(last).parameters():
                parameter.data.mul_(alpha)
        torch.testing.assert_close(net(IMAGES), halved(IMAGES), rtol=1e-5, atol=1e-5)
    fixup = nl.convert(model.train(), "fixup", IMAGES, residual_map=maps[0])
    assert not any(isinstance(module, NORMS) for module in fixup.modules())
    (fixup(IMAGES).square() + fixup(IMAGES)).sum().backward()
    gradients = [parameter.grad for parameter in fixup.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.any() for gradient in gradients)
