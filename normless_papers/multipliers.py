"""What multipliers at the ends of branches do, at the start and in general, against the formula."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normless import residual_map
from normless_papers.agreement import ROUNDING, Agreement, agreement
from normless_papers.reference_forward import disturbed, gradients, wide_resnet_with_multipliers


def blocks_at_start(network: nn.Module, images: Tensor) -> list[Agreement]:
    """Every sum is its skip path, bit for bit, and logits do not change when all branch weights are drawn anew."""
    worst = Agreement("With α = 0 every block's sum is its skip path, whatever the branch computes", 0.0)
    found = residual_map(network)

    def compare(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal worst
        here = agreement(worst.quantity, output, inputs[0])
        worst = max(worst, here, key=lambda one: one.deviation)

    network.eval()
    handles = [
        network.get_submodule(block.sum).register_forward_hook(compare)
        for block in found.blocks
        if block.sum is not None
    ]
    with torch.no_grad():
        before = network(images)
        for block in found.blocks:
            for path in block.branch:
                weight = network.get_submodule(path).get_parameter("weight")
                weight.copy_(10 * weight.std() * torch.randn_like(weight))
        after = network(images)
    for handle in handles:
        handle.remove()
    if len(handles) < len(found.blocks):
        raise ValueError(
            "Expected every block's sum to be a module of its own; compare one of normless' own networks."
        )
    return [worst, agreement("Other branch weights, ten times larger, give the same logits", after, before)]


def placement(network: nn.Module, images: Tensor) -> list[Agreement]:
    """With everything off its start, outputs and the multipliers' gradients against skip + α (w₂ ∗ … + b₂)."""
    disturbed(network).eval()
    x = images.double()
    ours, formula = network(x), wide_resnet_with_multipliers(network, x)
    multipliers = [name for name, _ in network.named_parameters() if name.endswith("multiplier")]
    return [
        agreement(
            "α multiplies the last convolution with its bias: logits are the formula's", ours, formula, ROUNDING
        ),
        agreement(
            "So are the gradients of all α",
            gradients(network, ours, multipliers),
            gradients(network, formula, multipliers),
            ROUNDING,
        ),
    ]
