"""The biases and the dropout that ZeroInit, also called regularized SkipInit, adds to its multipliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normless import residual_map
from normless_papers.claims import Check, Estimate, check, over_draws
from normless_papers.claims.agreement import Agreement, agreement
from normless_papers.experiments.de_smith import built_wide_resnet
from normless_papers.networks.multipliers import blocks_at_start, placement
from normless_papers.networks.published_schemes import convert


@dataclass(frozen=True)
class RegularizedFacts:
    """The number of layers with a bias in a network converted by ZeroInit, and the share of features dropped."""

    layers: int
    with_bias: int
    agreements: tuple[Agreement, ...]
    shares: Mapping[str, Estimate]

    def checks(self, drops: Mapping[str, float]) -> list[Check]:
        """Check that the network is as the papers define it, with these drop probabilities."""
        counts = {"layers": self.layers, "with_bias": self.with_bias}
        biased = check("All convolutions and linear layers have a bias.", self.with_bias == self.layers > 0, **counts)
        dropped = [drop_check(name, drop, self.shares[name]) for name, drop in drops.items()]
        return [biased, *map(Agreement.check, self.agreements), *dropped]


def regularized_facts(
    scheme: str,
    depth: int,
    width: int,
    draws: int,
    dropouts: Mapping[str, str],
    compare: Callable[[nn.Module, nn.Module, Tensor], Agreement],
) -> RegularizedFacts:
    """Measure a Wide-ResNet converted by a scheme that is ZeroInit.

    `dropouts` are schemes by the name of their drop probability, measured over some draws; `compare` adds an
    agreement, given the original network, the converted network and images.
    """
    original, images = built_wide_resnet(depth, width), torch.randn(4, 3, 16, 16)
    network = convert(original, scheme)
    layers, with_bias, zero = biases(original, network)
    agreements = (
        zero,
        compare(original, network, images),
        *blocks_at_start(network, images),
        *placement(convert(original, f"{scheme}(dropout=0)"), images),
    )
    shares = {name: dropped_share(original, dropping, draws) for name, dropping in dropouts.items()}
    return RegularizedFacts(layers, with_bias, agreements, shares)


def biases(original: nn.Module, network: nn.Module) -> tuple[int, int, Agreement]:
    """Count convolutions and linear layers, and those with a bias, and compare the biases with 0."""
    layers = [name for name, module in original.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    parameters = dict(network.named_parameters())
    own = [parameters[f"{name}.bias"] for name in layers if f"{name}.bias" in parameters]
    values = torch.cat([torch.zeros(1), *own])
    zero = agreement("All biases, the classifier's included, start at 0", values, torch.zeros_like(values))
    return len(layers), len(own), zero


def dropped_share(original: nn.Module, scheme: str, draws: int) -> Estimate:
    """Estimate the share of the classifier's features that a scheme drops in training, over some draws."""
    network = convert(original, scheme).train()
    classifier = network.get_submodule(residual_map(network).classifier or "")
    features = torch.ones(draws, int(classifier.get_parameter("weight").shape[1]))
    outputs: Tensor = classifier.get_submodule("before")(features)
    return over_draws((outputs == 0).double().mean(1).tolist())


def drop_check(name: str, drop: float, share: Estimate) -> Check:
    """Check that the mean share dropped lies within four standard errors of the probability."""
    error = share.deviation / share.n**0.5
    claim = f"Of the features before the classifier {drop:g} are dropped ({name}), within four standard errors."
    holds = abs(share.mean - drop) <= 4 * error
    return check(claim, holds, measured=share.mean, expected=drop, standard_error=error)
