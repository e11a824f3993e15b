"""Convolutions side by side are one layer, and a stem may stand in the module of the blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from written_networks import Written

from normless import residual_map

WIDTH = 8


def parallel(forward: Callable[[Written, Tensor], Tensor]) -> nn.Module:
    """Convolutions side by side, as re-parameterizable networks train them."""
    norms = {f"norm{number}": nn.BatchNorm2d(4) for number in (1, 2, 3)}
    return Written(forward, wide=nn.Conv2d(4, 4, 3, padding=1), point=nn.Conv2d(4, 4, 1), **norms)


PARALLEL: dict[str, Callable[[Written, Tensor], Tensor]] = {
    "repvgg": lambda net, x: torch.relu(net.norm1(net.wide(x)) + net.norm2(net.point(x)) + net.norm3(x)),
    "repvgg without identity": lambda net, x: torch.relu(net.norm1(net.wide(x)) + net.norm2(net.point(x))),
    "mobileone": lambda net, x: torch.relu(net.norm3(x) + net.norm1(net.wide(x))),
    "repvit": lambda net, x: net.norm3((net.norm1(net.wide(x)) + net.point(x)) + x),
}


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_convolutions_are_one_layer(name: str) -> None:
    found = residual_map(parallel(PARALLEL[name]), torch.randn(2, 4, 6, 6))
    assert found.blocks == ()


PROJECTING: dict[str, Callable[[Written, Tensor], Tensor]] = {
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
    found = residual_map(parallel(PROJECTING[name]), torch.randn(2, 4, 6, 6))
    (block,) = found.blocks
    assert (block.branch, block.skip) == (("wide",), ("point",))
    assert found.unresolved == tuple(one for one in found.unresolved if one.path.startswith("norm"))


def test_a_projecting_block_between_blocks_with_identity_skip_paths() -> None:
    def block() -> nn.Module:
        layers = {name: nn.Conv2d(4, 4, 3, padding=1) for name in "ab"}
        return Written(lambda m, x: x + m.b(torch.relu(m.norm(m.a(x)))), **layers, norm=nn.BatchNorm2d(4))

    model = nn.Sequential(nn.Conv2d(4, 4, 1), block(), parallel(PROJECTING["bare shortcut"]), block())
    found = residual_map(model, torch.randn(2, 4, 6, 6))
    assert [block.name for block in found.blocks] == ["1", "2", "3"]
    assert found.norms["2.norm1"] == "last"


def encoder(m: Written, x: Tensor) -> Tensor:
    """A stem and two blocks in one forward pass; hidden layers go to the output as well, as in a WaveNet."""
    x, total = m.norm(m.first(x)), torch.zeros(())
    for hidden, back, out in zip(m.hidden, m.back, m.out, strict=True):
        h = torch.relu(hidden(x))
        total = total + torch.tanh(out(h))
        x = x + back(h)
    return torch.cat([x, total])


def test_a_stem_in_the_module_of_the_blocks_is_the_stem() -> None:
    layers = {name: nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)) for name in ("hidden", "back", "out")}
    inner = Written(encoder, first=nn.Linear(WIDTH, WIDTH), norm=nn.LayerNorm(WIDTH), **layers)
    found = residual_map(nn.Sequential(nn.Linear(3, WIDTH), inner), torch.randn(2, 3))
    assert [block.branch for block in found.blocks] == [("1.hidden.0", "1.back.0"), ("1.hidden.1", "1.back.1")]
    assert found.stem == ("0", "1.first")
    assert found.norms == {"1.norm": "stem"}
    assert {layer.path for layer in found.trunk_layers} >= {"1.out.0"}
