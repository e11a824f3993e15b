"""Networks in styles of code that `tests/benchmarks/test_styles.py` lacks, with blocks stated by hand.

A whole conversion with α = 0 leaves the skip paths alone, whatever the weights of the branches; with α = 1 it
computes what `none` does; with α = 0.5 what the network with Gaussian biases does with its norms taken out and its
branches halved, both by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from code_styles import (
    Board,
    Classifier,
    DiffusionUNet,
    DropsByBranching,
    DropsByFloor,
    DropsByMask,
    EinsumTransformer,
    Reversible,
    rearrangements,
)
from torch import Tensor, nn

import normless as nl

IMAGES = torch.randn(4, 3, 8, 8)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm)


def pairs(attention: str, feed_forward: str) -> list[set[str]]:
    """The weight layers of two layers of attention and MLP, by the names of both."""
    names = (("to_qkv", "to_out"), ("1", "3"))
    parts = [(f"layers.{layer}.{part}", own) for layer in range(2) for part, own in zip(
        (attention, feed_forward), names, strict=True
    )]  # fmt: skip
    return [{f"{path}.{name}" for name in own} for path, own in parts]


def twice(*names: str, of: str = "blocks") -> list[set[str]]:
    """The same weight layers in two blocks."""
    return [{f"{of}.{index}.{name}" for name in names} for index in range(2)]


@dataclass(frozen=True)
class Style:
    """A network, its inputs, and by hand the weight layers on the branches and the last layer of each branch.

    `branches` are those of the outermost blocks, or of the blocks under a global skip path.
    """

    build: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    branches: list[set[str]]
    last: list[str]


def in_blocks(build: Callable[[], nn.Module]) -> Style:
    """Two blocks with one branch f."""
    classifier = partial(Classifier, build)
    return Style(classifier, (IMAGES,), twice("f.conv1", "f.conv2"), ["blocks.0.f.conv2", "blocks.1.f.conv2"])


ENDS_OF_PAIRS = ["layers.0.0.to_out", "layers.0.1.3", "layers.1.0.to_out", "layers.1.1.3"]
COUPLED = [{f"{part}.{step}.conv1", f"{part}.{step}.conv2"} for step in range(2) for part in "fg"]
STYLES = {
    "einsum attention": Style(EinsumTransformer, (IMAGES,), pairs("0", "1"), ENDS_OF_PAIRS),
    "einops layers": Style(partial(EinsumTransformer, rearrangements), (IMAGES,), pairs("0", "1"), ENDS_OF_PAIRS),
    "guided diffusion": Style(
        DiffusionUNet,
        (IMAGES, torch.arange(4)),
        [{f"{name}.{layer}" for layer in ("in_layers.2", "emb_layers.1", "out_layers.3")} for name in (
            "down", "middle", "up"
        )],
        [f"{name}.out_layers.3" for name in ("down", "middle", "up")],
    ),
    "drop path by a mask": in_blocks(DropsByMask),
    "drop path by floor": in_blocks(DropsByFloor),
    "drop path by branching": in_blocks(DropsByBranching),
    "KataGo": Style(
        Board, (IMAGES,), twice("conv1r", "conv1g", "linear", "conv2"), ["blocks.0.conv2", "blocks.1.conv2"]
    ),
    "reversible": Style(
        Reversible, (IMAGES,), COUPLED, [f"{part}.{step}.conv2" for part in "fg" for step in range(2)]
    ),
}  # fmt: skip


@pytest.fixture(params=STYLES)
def style(request: pytest.FixtureRequest) -> Style:
    if request.param == "einops layers" and find_spec("einops") is None:
        pytest.skip("einops is not installed")
    made: Style = STYLES[request.param]
    return made


def built(style: Style) -> nn.Module:
    """The network in evaluation with Gaussian biases."""
    model = style.build().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    return model


def outputs(net: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    result = net(*inputs)
    return torch.cat(result, 1) if isinstance(result, tuple) else result


def assert_close(one: Tensor, other: Tensor, style: Style) -> None:
    tolerance = 0.05 if style.build is Board else 1e-5  # autocast to 8 bits of mantissa
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


def test_the_map_is_the_one_stated_by_hand(style: Style) -> None:
    for training in (False, True):
        mapped = nl.residual_map(style.build().train(training), *style.inputs, strict=True)
        blocks = mapped.without_global_skips().blocks
        found = [{layer.path for layer in block.branch_layers if layer.kind == "weight"} for block in blocks]
        assert found == style.branches
        assert all(block.m >= 2 for block in blocks)


def test_with_a_multiplier_of_zero_branches_are_inert(style: Style) -> None:
    net = nl.convert(built(style), "skipinit", *style.inputs)
    before = outputs(net, style.inputs)
    with torch.no_grad():
        for path in set().union(*style.branches):
            for parameter in net.get_submodule(path).parameters(recurse=False):
                parameter.mul_(-3) if parameter.numel() > 1 else None
    assert torch.equal(outputs(net, style.inputs), before)


def test_multipliers_are_where_a_hand_would_put_them(style: Style) -> None:
    model = built(style)
    by_hand = deepcopy(model)
    for path, module in list(by_hand.named_modules()):
        if isinstance(module, NORMS):
            by_hand.set_submodule(path, nn.Identity())
    mapped = nl.residual_map(model, *style.inputs)
    none, one, half = (
        nl.convert(model, scheme, *style.inputs, residual_map=mapped).eval()
        for scheme in (
            "none(keep_scale=False)",
            "skipinit(alpha=1, keep_scale=False)",
            "skipinit(alpha=0.5, keep_scale=False)",
        )
    )
    assert_close(outputs(none, style.inputs), outputs(by_hand, style.inputs), style)
    assert_close(outputs(one, style.inputs), outputs(none, style.inputs), style)
    with torch.no_grad():
        for path in style.last:
            for parameter in by_hand.get_submodule(path).parameters():
                parameter.mul_(0.5)
    assert_close(outputs(half, style.inputs), outputs(by_hand, style.inputs), style)
    assert not torch.allclose(outputs(half, style.inputs), outputs(none, style.inputs), atol=1e-4)


def test_a_conversion_is_whole_and_trains(style: Style) -> None:
    net = nl.convert(built(style).train(), "fixup", *style.inputs)
    assert not any(isinstance(module, NORMS) for module in net.modules())
    # Both zero branches and Fixup's zero classifier let something learn in the first step.
    outputs(net.train(), style.inputs).square().add(outputs(net, style.inputs)).sum().backward()
    gradients = [one.grad for one in net.parameters() if one.grad is not None]
    assert all(torch.isfinite(one).all() for one in gradients)
    assert any(one.any() for one in gradients)
