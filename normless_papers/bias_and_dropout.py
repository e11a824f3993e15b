"""The biases and the dropout that ZeroInit, or regularized SkipInit, adds to its multipliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normless import residual_map
from normless.sweeps import convert
from normless_papers.agreement import Agreement, agreement
from normless_papers.claims import Check, Estimate, check, over_draws


@dataclass(frozen=True)
class RegularizedFacts:
    """What was measured of a network converted by ZeroInit, by either of its names.

    Attributes:
        layers: convolutions and linear layers of the original network.
        with_bias: how many of them have a bias in the converted one.
        agreements: of the converted network with the formula.
        shares: of the classifier's features that are dropped, by what they are dropped for.
    """

    layers: int
    with_bias: int
    agreements: tuple[Agreement, ...]
    shares: Mapping[str, Estimate]

    def checks(self, drops: Mapping[str, float]) -> list[Check]:
        """That everything is there as the papers define it, with these drop probabilities."""
        biased = check(
            "All convolutions and linear layers have a bias.",
            self.with_bias == self.layers > 0,
            layers=self.layers,
            with_bias=self.with_bias,
        )
        dropped = [drop_check(name, drop, self.shares[name]) for name, drop in drops.items()]
        return [biased, *(one.check() for one in self.agreements), *dropped]


def biases(original: nn.Module, network: nn.Module) -> tuple[int, int, Agreement]:
    """How many convolutions and linear layers there are, how many have a bias, and that each bias starts at zero."""
    kinds = (nn.Conv2d, nn.Linear)
    layers = [name for name, module in original.named_modules() if isinstance(module, kinds)]
    found = [dict(network.get_submodule(name).named_parameters(recurse=False)).get("bias") for name in layers]
    values = torch.cat([torch.zeros(1), *(one for one in found if one is not None)])
    zero = agreement("All biases, the classifier's included, start at 0", values, torch.zeros_like(values))
    return len(layers), sum(one is not None for one in found), zero


def dropped_share(original: nn.Module, scheme: str, draws: int) -> Estimate:
    """The share of the classifier's features that a scheme drops in training, over some draws."""
    network = convert(original, scheme).train()
    classifier = network.get_submodule(residual_map(network).classifier or "")
    before = classifier.get_submodule("before")
    features = int(classifier.get_parameter("weight").shape[1])
    kept: Tensor = before(torch.ones(draws, features))
    return over_draws((kept == 0).double().mean(1).tolist())


def drop_check(name: str, drop: float, share: Estimate) -> Check:
    """The mean share dropped within four standard errors of the probability."""
    error = share.deviation / share.n**0.5
    return check(
        f"Of the features before the classifier {drop:g} are dropped ({name}), within four standard errors.",
        abs(share.mean - drop) <= 4 * error,
        measured=share.mean,
        expected=drop,
        standard_error=error,
    )
