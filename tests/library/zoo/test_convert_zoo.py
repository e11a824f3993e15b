"""SkipInit on one network of each of timm's architecture modules: converted and trainable, or refused with reason."""

from __future__ import annotations

import math

import pytest
import timm
import torch
from torch import Tensor, nn
from zoo_networks import BY_NAME, ZOO

import normless as nl

QUICK = {"test_resnet", "test_vit"}

NO_BLOCK = "it has no residual block"
# Networks without residual blocks, and those whose forward code gives an edit no place.
REFUSED = {
    **{one.name: NO_BLOCK for one in ZOO if one.blocks == 0},
    "test_nfnet": r"not possible at stages\.0\.0\.residual_sum .*: its branch returns 0",
}
# Networks in which what a branch computes also leaves it before the multiplier, so that its weights learn at once.
OPEN_BRANCHES = {
    "dpn48b": "a part of each branch's channels is concatenated and not added",
    "efficientvim_m1": "the hidden state of a mixer is read at the end of its stage too",
    "nasnetalarge": "a cell concatenates what its sums add",
    "pnasnet5large": "a cell concatenates what its sums add",
    "rexnet_100": "the channels of a branch beyond those of its input are not added to anything",
}


@pytest.mark.parametrize(
    "name", [pytest.param(one.name, marks=() if one.name in QUICK else pytest.mark.zoo) for one in ZOO]
)
def test_skipinit_converts_and_trains_or_says_why_not(name: str) -> None:
    if not timm.is_model(name):
        pytest.skip(f"timm {timm.__version__} has no {name}")
    torch.manual_seed(0)
    model = BY_NAME[name].build().train()
    images = BY_NAME[name].images(model)
    if name in REFUSED:
        with pytest.raises(nl.UnsupportedEditError, match=REFUSED[name]):
            nl.convert(model, "skipinit", images)
        return
    found = nl.residual_map(model, images)
    net = nl.convert(model, "skipinit", images, residual_map=found)
    multipliers = {path: one for path, one in net.named_parameters() if path.endswith("multiplier")}
    # A block that runs repeatedly has one.
    assert len(multipliers) == sum(len(block.branches) for block in found.with_shared_once().blocks)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses, moved = [], set()
    for step in range(3):
        loss = _loss(net, images)
        optimizer.zero_grad()
        loss.backward()
        if step == 0 and name not in OPEN_BRANCHES:
            _branches_are_shut(net, found)
        optimizer.step()
        losses.append(loss.item())
        # Where the classifier starts at 0, nothing behind it has a gradient at the first step.
        moved |= {path for path, one in multipliers.items() if bool(one.any())}
    assert all(map(math.isfinite, losses)), losses
    assert moved == set(multipliers)


def _loss(net: nn.Module, images: Tensor) -> Tensor:
    output = net(images)
    logits = output[0] if isinstance(output, tuple) else output
    targets = torch.arange(len(images)) % logits.flatten(1).shape[1]
    return nn.functional.cross_entropy(logits.flatten(1), targets)


def _branches_are_shut(net: nn.Module, found: nl.ResidualMap) -> None:
    """With every multiplier at 0 no gradient comes to a weight that lies on branches alone."""
    parameters = dict(net.named_parameters())
    outside = {name for layer in found.layers() for name in layer.parameters} - {
        name for block in found.blocks for layer in block.branch_layers for name in layer.parameters
    }
    for block in found.blocks:
        elsewhere = {name for layer in (*block.skip_layers, *block.shared_layers) for name in layer.parameters}
        for layer in block.branch_layers:
            for name in set(layer.parameters) - outside - elsewhere:
                gradient = parameters[name].grad if name in parameters else None
                assert gradient is None or not bool(gradient.any()), f"{name} of {block.name} learns at once"


def test_nine_of_ten_networks_that_have_blocks_are_converted() -> None:
    with_blocks = [one.name for one in ZOO if one.blocks != 0]
    assert sum(name in REFUSED for name in with_blocks) <= 0.1 * len(with_blocks)
