"""PredictedVariance, of nf_resnet: the signal is the one that the paper's recursion says."""

from __future__ import annotations

from math import pi, sqrt

import pytest
import torch
from edit_helpers import close, edited
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.edits import PredictedVariance, RemoveNorms, StandardizeWeights
from normless.models import wide_resnet

FREE = "nf_resnet(multiplier=False)"
EDITS = (RemoveNorms(), StandardizeWeights(), PredictedVariance())
RELU = sqrt(2 / (1 - 1 / pi))


@pytest.mark.parametrize(
    ("depth", "scheme", "stages"),
    [
        (28, FREE, [[1.0, *(sqrt(1 + 0.04 * k) for k in range(1, 5))], [sqrt(1 + 0.04 * k) for k in range(1, 5)]]),
        (16, "nf_resnet(alpha=0.5, multiplier=False)", [[1.0, sqrt(1.25), sqrt(1.5)], [sqrt(1.25), sqrt(1.5)]]),
    ],
)
def test_the_recursion_of_a_pre_activation_network(depth: int, scheme: str, stages: list[list[float]]) -> None:
    """1 behind the stem, + α² a block, 1 + α² behind a projecting one, as the plan says of every block."""
    changes = [change.what for change in nl.plan(wide_resnet(depth, 1), scheme)]
    found = [float(what.partition("f(x / ")[2].rstrip(")")) for what in changes if "f(x / " in what]
    expected = [*stages[0], *stages[1], *stages[1]]
    assert found == pytest.approx(expected[: len(found)], rel=1e-3)
    assert len(found) == 3 * (depth - 4) // 6


def test_a_block_is_the_papers_formula() -> None:
    """x + α·f(x/β) with γ at every activation, in a network with biases; the projecting block reads x/β on both."""
    net = edited(wide_resnet(16, 1), *EDITS).double()

    def standardized(conv: nn.Conv2d, x: Tensor) -> Tensor:
        w = conv.weight
        mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), correction=0, keepdim=True)
        return F.conv2d(x, (w - mean) / (var * w[0].numel()).sqrt(), stride=conv.stride, padding=conv.padding)

    for index, beta in ((1, sqrt(1.04)), (2, sqrt(1.08)), (3, sqrt(1.04))):
        block = net.blocks[index]
        x = torch.randn(2, block.conv1.in_channels, 8, 8, dtype=torch.float64)
        h = RELU * F.relu(x / beta)
        skip = standardized(block.shortcut, h) if block.projects else x
        branch = standardized(block.conv2, RELU * F.relu(standardized(block.conv1, h)))
        close(block(x), skip + 0.2 * branch, rtol=1e-9, atol=1e-9)
