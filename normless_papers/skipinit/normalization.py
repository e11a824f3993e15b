"""SkipInit, appendix A: the definition of batch normalization, against the layers of our networks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normless.models import wide_resnet
from normless.nn import GhostBatchNorm2d
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Data, Network
from normless_papers.claims import Claim, check
from normless_papers.claims.agreement import ROUNDING, Agreement, agreement, agreement_table, deviation
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.plots import AGREEMENT


def _definition_checks(facts: tuple[Sequence[Agreement], float]) -> list[Claim]:
    """Check the layers against the formula, and how an example's output depends on its batch in training mode."""
    agreements, dependence = facts
    depends = "In training mode the same examples have other outputs in another batch, by more than 0.001."
    return [*map(Agreement.check, agreements), check(depends, dependence > 1e-3, largest_difference=dependence)]


@artefact("skipinit/batch-norm-definition", basis="formula", checks=_definition_checks)
def definition(
    context: Context, *, batch: int, channels: Network[int], side: Data[int], ghost: Network[int], depth: Network[int]
) -> Evidence:
    with seeded(context.seed):
        x = 2 * torch.randn(batch, channels, side, side, dtype=torch.float64) + torch.randn(channels, 1, 1).double()
        agreements = [*_in_training(x), *_at_test_time(x), _ghosts(x, ghost)]
        agreements.append(_networks_ghosts(x.new_empty(batch, 3, 8, 8).normal_(), depth, ghost))
        # The first half of the batch alone, against its outputs in the whole batch.
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
    )


def _by_definition(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """Evaluate the formula, with σ² = (1/Z) Σ I² - μ²; x has shape (B, C, H, W)."""
    count = x.numel() // x.shape[1]
    mean = x.sum((0, 2, 3)) / count
    variance = x.square().sum((0, 2, 3)) / count - mean.square()
    gamma, beta, mean, variance = (value.reshape(-1, 1, 1) for value in (gamma, beta, mean, variance))
    return gamma * (x - mean) / (variance + epsilon).sqrt() + beta


def _drawn(layer: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """Draw γ and β of a layer from N(0, 1), in float64."""
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer.double()


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and biased variance of every channel."""
    return x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)


def _in_training(x: Tensor) -> list[Agreement]:
    """Compare the output with the formula, and its moments with γ = 1 and β = 0."""
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
    """Compare the running averages of one batch with momentum 0, and predictions at test time."""
    # The paper's momentum is the weight of the old value, torch's that of the batch.
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
        agreement("At test time an example alone has the same output as in its batch", alone, layer(x), ROUNDING),
    ]


def _ghosts(x: Tensor, ghost: int) -> Agreement:
    layer = _drawn(GhostBatchNorm2d(x.shape[1], ghost_size=ghost))
    parts = [_by_definition(part, layer.weight, layer.bias, layer.eps) for part in torch.split(x, ghost)]
    return agreement(
        "Ghost batch norm follows the formula on every ghost batch", layer(x), torch.cat(parts), ROUNDING
    )


def _networks_ghosts(images: Tensor, depth: int, ghost: int) -> Agreement:
    network = wide_resnet(depth, 1).double()
    whole = convert(network, f"ghost_batch_norm(size={ghost})")(images)
    parts = torch.cat([network(part) for part in torch.split(images, ghost)])
    return agreement("A network with ghost batches treats every ghost batch as a batch", whole, parts, ROUNDING)
