"""Batch normalization as appendix A defines it, against the layers that our networks have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normless.models import wide_resnet
from normless.nn import GhostBatchNorm2d
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check
from normless_papers.claims.agreement import ROUNDING, Agreement, agreement, agreement_table, deviation
from normless_papers.networks.published_schemes import convert
from normless_papers.networks.seeded_inputs import seeded
from normless_papers.plots import AGREEMENT


def _definition_checks(facts: tuple[Sequence[Agreement], float]) -> list[Check]:
    """Of the layers and the formula, and of the change of an example's output by its batch in training mode."""
    agreements, dependence = facts
    depends = "In training mode the same examples in another batch come out otherwise, by more than 0.001."
    return [*(one.check() for one in agreements), check(depends, dependence > 1e-3, largest_difference=dependence)]


@artefact("skipinit/batch-norm-definition", basis="formula", checks=_definition_checks)
def definition(context: Context, *, batch: int, channels: int, side: int, ghost: int, depth: int) -> Evidence:
    with seeded(context.seed):
        x = 2 * torch.randn(batch, channels, side, side, dtype=torch.float64) + torch.randn(channels, 1, 1).double()
        agreements = [*_in_training(x), *_at_test_time(x), _ghosts(x, ghost)]
        agreements.append(_networks_ghosts(x.new_empty(batch, 3, 8, 8).normal_(), depth, ghost))
        # How far the first half of the batch comes out from what it is in the whole one.
        layer, half = nn.BatchNorm2d(channels).double(), batch // 2
        dependence = deviation(layer(x[:half]), layer(x)[:half])
    table = agreement_table(agreements)
    return Evidence(
        measured=table,
        facts=(agreements, dependence),
        setup={
            "inputs": f"independent normal, float64, {batch}×{channels}×{side}×{side}, another mean for each channel",
            "layers": f"torch.nn.BatchNorm2d, ε = {nn.BatchNorm2d(1).eps:g}; GhostBatchNorm2d of {ghost} examples",
            "network": f"Wide-ResNet-{depth}-1, converted by ghost_batch_norm(size={ghost})",
        },
        draw=lambda: AGREEMENT(table),
        remarks=(
            "The paper's σ² is the biased estimate, in training and in the running average; torch keeps the unbiased "
            "one, Z/(Z - 1) times as large, in its running average. With batches of images the factor is 1 to four "
            "digits.",
        ),
    )


def _by_definition(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """The formula, with σ² = (1/Z) Σ I² - μ²; x of shape (B, C, H, W)."""
    count = x.numel() // x.shape[1]
    mean = x.sum((0, 2, 3)) / count
    variance = x.square().sum((0, 2, 3)) / count - mean.square()
    gamma, beta, mean, variance = (one.reshape(-1, 1, 1) for one in (gamma, beta, mean, variance))
    return gamma * (x - mean) / (variance + epsilon).sqrt() + beta


def _drawn(layer: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """The layer with γ and β drawn from the normal distribution, in float64."""
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer.double()


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of every channel."""
    return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)


def _in_training(x: Tensor) -> list[Agreement]:
    """The output by the formula, and its moments with γ = 1 and β = 0."""
    layer = _drawn(nn.BatchNorm2d(x.shape[1]))
    formula = _by_definition(x, layer.weight, layer.bias, layer.eps)
    plain = nn.BatchNorm2d(x.shape[1]).double()
    mean, variance = _moments(plain(x))
    _, expected = _moments(x)
    zeros, ratio = torch.zeros_like(mean), expected / (expected + plain.eps)
    return [
        agreement("γ is 1 at the start", plain.weight, torch.ones_like(mean)),
        agreement("β is 0 at the start", plain.bias, zeros),
        agreement("In training the output is the formula's", layer(x), formula, ROUNDING),
        agreement("With γ = 1, β = 0 the mean of every channel is 0", mean, zeros, ROUNDING),
        agreement("With γ = 1, β = 0 the variance of every channel is σ²/(σ² + ε)", variance, ratio, ROUNDING),
    ]


def _at_test_time(x: Tensor) -> list[Agreement]:
    """The running averages with momentum 0 of one batch, and predictions at test time."""
    # The paper's momentum is the share of the old value in the new one; torch's is that of the batch.
    layer = nn.BatchNorm2d(x.shape[1], momentum=1.0).double()
    layer(x)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    count = x.numel() // x.shape[1]
    layer.eval()
    alone = torch.cat([layer(example) for example in torch.split(x, 1)])
    biased, (mean, variance) = layer.running_var * (count - 1) / count, _moments(x)
    claim = "After one update with momentum 0 the running"
    return [
        agreement(f"{claim} mean is μ", layer.running_mean, mean, ROUNDING),
        agreement(f"{claim} variance is Z/(Z - 1) σ²", biased, variance, ROUNDING),
        agreement("At test time an example alone gives what it gives in its batch", alone, layer(x), ROUNDING),
    ]


def _ghosts(x: Tensor, ghost: int) -> Agreement:
    layer = _drawn(GhostBatchNorm2d(x.shape[1], ghost_size=ghost))
    parts = [_by_definition(part, layer.weight, layer.bias, layer.eps) for part in torch.split(x, ghost)]
    return agreement("Ghost batch norm is the formula on every ghost batch", layer(x), torch.cat(parts), ROUNDING)


def _networks_ghosts(images: Tensor, depth: int, ghost: int) -> Agreement:
    network = wide_resnet(depth, 1).double()
    whole = convert(network, f"ghost_batch_norm(size={ghost})")(images)
    parts = torch.cat([network(part) for part in torch.split(images, ghost)])
    return agreement("A network with ghost batches is the network on every ghost batch alone", whole, parts, ROUNDING)
