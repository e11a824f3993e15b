"""What multipliers at the ends of branches do, at the start and in general, against the formula."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normless import residual_map
from normless_papers.agreement import ROUNDING, Agreement, agreement, observed, worst_agreement
from normless_papers.reference_forward import disturbed, gradients, wide_resnet_with_multipliers


def blocks_at_start(network: nn.Module, images: Tensor) -> list[Agreement]:
    """Every sum is its skip path, bit for bit, and logits do not change when all branch weights are drawn anew."""
    blocks = residual_map(network).blocks
    sums = [network.get_submodule(block.sum) for block in blocks if block.sum is not None]
    assert len(sums) == len(blocks), "In normless' own networks every block's sum is a module."
    calls, before = observed(network.eval(), sums, images)
    with torch.no_grad():
        for block in blocks:
            for path in block.branch:
                weight = network.get_submodule(path).get_parameter("weight")
                weight.copy_(10 * weight.std() * torch.randn_like(weight))
    again, after = observed(network, sums, images)
    quantity = "With α = 0 every block's sum is its skip path, whatever the branch computes"
    same = worst_agreement(quantity, [(output, sides[0]) for sides, output in (*calls, *again)])
    return [same, agreement("Other branch weights, ten times larger, give the same logits", after, before)]


def placement(network: nn.Module, images: Tensor) -> list[Agreement]:
    """With everything off its start, outputs and the multipliers' gradients against skip + α (w₂ ∗ … + b₂)."""
    disturbed(network).eval()
    x = images.double()
    ours, formula = network(x), wide_resnet_with_multipliers(network, x)
    names = [name for name, _ in network.named_parameters() if name.endswith("multiplier")]
    slopes, expected = (gradients(network, logits, names) for logits in (ours, formula))
    claim = "α multiplies the last convolution with its bias: logits are the formula's"
    return [
        agreement(claim, ours, formula, ROUNDING),
        agreement("So are the gradients of all α", slopes, expected, ROUNDING),
    ]
