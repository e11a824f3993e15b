"""Convolutions side by side are one layer, and a stem may stand in the module of the blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from normless import residual_map

WIDTH = 8


class Parallel(nn.Module):
    """Convolutions side by side, as re-parameterizable networks train them."""

    def __init__(self, forward: Callable[[Parallel, Tensor], Tensor]) -> None:
        super().__init__()
        self.written = forward
        self.wide, self.point = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.norm1, self.norm2, self.norm3 = (nn.BatchNorm2d(4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.written(self, x)


PARALLEL: dict[str, Callable[[Parallel, Tensor], Tensor]] = {
    "repvgg": lambda net, x: torch.relu(net.norm1(net.wide(x)) + net.norm2(net.point(x)) + net.norm3(x)),
    "repvgg without identity": lambda net, x: torch.relu(net.norm1(net.wide(x)) + net.norm2(net.point(x))),
    "mobileone": lambda net, x: torch.relu(net.norm3(x) + net.norm1(net.wide(x))),
    "repvit": lambda net, x: net.norm3((net.norm1(net.wide(x)) + net.point(x)) + x),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_convolutions_are_one_layer(name: str) -> None:
    found = residual_map(Parallel(PARALLEL[name]), torch.randn(2, 4, 6, 6))
    assert found.blocks == ()


PROJECTING: dict[str, Callable[[Parallel, Tensor], Tensor]] = {
    "bare shortcut": lambda net, x: net.norm1(net.wide(x)) + net.point(x),
    "bare shortcut first": lambda net, x: torch.relu(net.point(x) + net.norm1(net.wide(x))),
    "bare shortcut in place": lambda net, x: net.norm1(net.wide(x)).add_(net.point(x)),
    "pooled shortcut": lambda net, x: (
        net.norm1(net.wide(x)) + net.norm2(net.point(nn.functional.max_pool2d(x, 3, 1, 1)))
    ),
}


@pytest.mark.parametrize("name", PROJECTING)
def test_a_shortcut_beside_one_normalized_convolution_is_the_skip_path(name: str) -> None:
    """The wider kernel is the branch, also where its path has fewer operations, as in a cell of PNASNet."""
    found = residual_map(Parallel(PROJECTING[name]), torch.randn(2, 4, 6, 6))
    (block,) = found.blocks
    assert (block.branch, block.skip) == (("wide",), ("point",))
    assert found.unresolved == tuple(one for one in found.unresolved if one.path.startswith("norm"))


def test_a_projecting_block_between_blocks_with_identity_skip_paths() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.b(torch.relu(self.norm(self.a(x))))

    model = nn.Sequential(nn.Conv2d(4, 4, 1), Block(), Parallel(PROJECTING["bare shortcut"]), Block())
    found = residual_map(model, torch.randn(2, 4, 6, 6))
    assert [block.name for block in found.blocks] == ["1", "2", "3"]
    assert found.norms["2.norm1"] == "last"


class Encoder(nn.Module):
    """A stem and two blocks in one forward pass; hidden layers go to the output as well, as in a WaveNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.hidden, self.back, self.out = (
            nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.norm(self.first(x)), torch.zeros(())
        for hidden, back, out in zip(self.hidden, self.back, self.out, strict=True):
            h = torch.relu(hidden(x))
            total = total + torch.tanh(out(h))
            x = x + back(h)
        return torch.cat([x, total])


def test_a_stem_in_the_module_of_the_blocks_is_the_stem() -> None:
    found = residual_map(nn.Sequential(nn.Linear(3, WIDTH), Encoder()), torch.randn(2, 3))
    assert [block.branch for block in found.blocks] == [("1.hidden.0", "1.back.0"), ("1.hidden.1", "1.back.1")]
    assert found.stem == ("0", "1.first")
    assert found.norms == {"1.norm": "stem"}
    assert {layer.path for layer in found.trunk_layers} >= {"1.out.0"}
