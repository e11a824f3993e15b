"""Norms and factors at the end of branches whose width or size differs from what the block reads, as in a U-Net."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.errors import UnsupportedEditError


class Block(nn.Module):
    """skip(x) + conv(relu(conv(norm(x)))) of another width, at the same or twice the size."""

    def __init__(self, norm: nn.Module, inputs: int, outputs: int, *, up: bool = False) -> None:
        super().__init__()
        self.norm, self.first = norm, nn.Conv2d(inputs, outputs, 3, padding=1)
        larger = nn.ConvTranspose2d(outputs, outputs, 4, 2, 1, groups=2)
        self.last = larger if up else nn.Conv2d(outputs, outputs, 3, padding=1)
        projection = nn.Conv2d(inputs, outputs, 1)
        self.skip = nn.Sequential(nn.Upsample(scale_factor=2), projection) if up else projection

    def branch(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(self.norm(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.branch(x)


class Tokens(nn.Module):
    """Linear layers to twice the width around a norm of the last axis."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.first, self.last, self.skip = norm, nn.Linear(8, 12), nn.Linear(12, 16), nn.Linear(8, 16)

    branch = Block.branch
    forward = Block.forward


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "group norm": (lambda: Block(nn.GroupNorm(4, 8), 8, 16), (3, 8, 4, 4), lambda y: F.group_norm(y, 4)),
    "fewer groups": (lambda: Block(nn.GroupNorm(4, 8), 8, 10), (3, 8, 4, 4), lambda y: F.group_norm(y, 2)),
    "instance norm": (lambda: Block(nn.InstanceNorm2d(8, affine=True), 8, 6), (3, 8, 4, 4), F.instance_norm),
    "batch norm, larger": (
        lambda: Block(nn.BatchNorm2d(8), 8, 4, up=True),
        (3, 8, 4, 4),
        lambda y: F.batch_norm(y, None, None, training=True),
    ),
    "group norm, larger": (
        lambda: Block(nn.GroupNorm(2, 8), 8, 4, up=True),
        (3, 8, 4, 4),
        lambda y: F.group_norm(y, 2),
    ),
    "layer norm": (lambda: Tokens(nn.LayerNorm(8)), (3, 5, 8), lambda y: F.layer_norm(y, (16,))),
    "rms norm": (lambda: Tokens(nn.RMSNorm(8)), (3, 5, 8), lambda y: F.rms_norm(y, (16,))),
}


def case(name: str) -> tuple[nn.Sequential, Tensor, Callable[[Tensor], Tensor]]:
    torch.manual_seed(0)
    block, shape, normalized = CASES[name]
    return nn.Sequential(nn.Identity(), block()).train(), torch.randn(shape), normalized


@pytest.mark.parametrize("name", CASES)
def test_peri_norm_has_the_width_of_the_branchs_end(name: str) -> None:
    model, x, normalized = case(name)
    net = nl.convert(model, "peri_norm(gamma=0.5)", x)
    expected = model[1].skip(x) + 0.5 * normalized(model[1].branch(x))
    torch.testing.assert_close(net(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_layer_scale_has_one_factor_for_each_output(name: str) -> None:
    model, x, _ = case(name)
    net = nl.convert(model, "layer_scale(init=0.5)", x)
    torch.testing.assert_close(net(x), model[1].skip(x) + 0.5 * model[1].branch(x), rtol=1e-4, atol=1e-5)


def test_norms_over_whole_images_are_copied_where_the_shape_stays_and_refused_elsewhere() -> None:
    class Same(Block):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.branch(x)

    torch.manual_seed(0)
    x = torch.randn(3, 8, 4, 4)
    same = nn.Sequential(nn.Identity(), Same(nn.LayerNorm([8, 4, 4]), 8, 8))
    expected = x + F.layer_norm(same[1].branch(x), (8, 4, 4))
    torch.testing.assert_close(nl.convert(same, "peri_norm", x)(x), expected, rtol=1e-4, atol=1e-5)
    wider = nn.Sequential(nn.Identity(), Block(nn.LayerNorm([8, 4, 4]), 8, 16))
    with pytest.raises(UnsupportedEditError, match=r"1\.norm.*\(8, 4, 4\).*16 channels"):
        nl.convert(wider, "peri_norm", x)
