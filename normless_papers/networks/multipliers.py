"""Multipliers at the ends of branches, at the start and in general, compared with the formula."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normless import residual_map
from normless_papers.claims.agreement import ROUNDING, Agreement, agreement, observed, worst_agreement
from normless_papers.networks.reference_forward import disturbed, gradients, wide_resnet_with_multipliers


def blocks_at_start(network: nn.Module, images: Tensor) -> list[Agreement]:
    """Every sum is its skip path, bit for bit, and new branch weights do not change the logits."""
    blocks = residual_map(network).blocks
    sums = [network.get_submodule(block.sum) for block in blocks if block.sum is not None]
    assert len(sums) == len(blocks), "The sums of normless' own networks are modules."
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
    """Outputs and the gradients of the multipliers agree with skip + α (w₂ ∗ … + b₂) for disturbed parameters."""
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
