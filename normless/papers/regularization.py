"""The biases and the dropout that ZeroInit, or regularized SkipInit, adds beside its multipliers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normless import residual_map
from normless.papers.agreement import Agreement, agreement
from normless.papers.as_printed import convert
from normless.papers.verdict import Check, check


def biases(original: nn.Module, network: nn.Module) -> tuple[Check, Agreement]:
    """Every convolution and the classifier have a bias in the converted network, and all of them are zero."""
    kinds = (nn.Conv2d, nn.Linear)
    layers = [name for name, module in original.named_modules() if isinstance(module, kinds)]
    held = [dict(network.get_submodule(name).named_parameters(recurse=False)).get("bias") for name in layers]
    count = sum(one is not None for one in held)
    values = torch.cat([torch.zeros(1), *(one for one in held if one is not None)])
    return (
        check(
            f"All {len(layers)} convolutions and linear layers have a bias.",
            count == len(layers),
            layers=len(layers),
            with_bias=count,
        ),
        agreement("The biases start at 0", values, torch.zeros_like(values)),
    )


def dropped_share(original: nn.Module, drop: float, draws: int) -> Tensor:
    """The share of the classifier's features that are dropped in training, in each of some draws; shape (draws,)."""
    network = convert(original, f"zeroinit(dropout={drop})").train()
    classifier = network.get_submodule(residual_map(network).classifier or "")
    before = classifier.get_submodule("before")
    features = int(classifier.get_parameter("weight").shape[1])
    kept: Tensor = before(torch.ones(draws, features))
    return (kept == 0).double().mean(1)


def drop_check(name: str, drop: float, shares: Tensor) -> Check:
    """The mean share dropped within four standard errors of the probability."""
    error = float(shares.std() / len(shares) ** 0.5)
    return check(
        f"On {name} {drop:g} of the features before the classifier are dropped, within four standard errors.",
        abs(float(shares.mean()) - drop) <= 4 * error,
        measured=float(shares.mean()),
        expected=drop,
        standard_error=error,
    )
