"""Distributions of initial weights, and the initialization of a network from one of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

Initialization = Literal["he", "he_fan_in", "he_fan_in_truncated", "xavier", "lecun", "orthogonal"]


@torch.no_grad()
def _orthogonal(weight: Tensor) -> Tensor:
    """Draw orthonormal rows or columns, in at least float32, since torch lacks QR in half precision."""
    drawn = torch.empty_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
    return weight.copy_(nn.init.orthogonal_(drawn))


def _truncated(weight: Tensor) -> Tensor:
    """Draw from a normal distribution cut off at two standard deviations, widened to a variance of 2/fan-in."""
    deviation = (2 / weight[0].numel()) ** 0.5 / _TRUNCATED_DEVIATION
    return nn.init.trunc_normal_(weight, 0.0, deviation, -2 * deviation, 2 * deviation)


# Of a standard normal distribution between -2 and 2.
_TRUNCATED_DEVIATION = 0.8796256610342398
INITIALIZATIONS: dict[Initialization, Callable[[Tensor], Tensor]] = {
    "he": partial(nn.init.kaiming_normal_, mode="fan_out", nonlinearity="relu"),
    "he_fan_in": partial(nn.init.kaiming_normal_, mode="fan_in", nonlinearity="relu"),
    "he_fan_in_truncated": _truncated,
    "xavier": nn.init.xavier_normal_,
    "lecun": partial(nn.init.kaiming_normal_, mode="fan_in", nonlinearity="linear"),
    "orthogonal": _orthogonal,
}


def initialize(network: nn.Module, kind: Initialization | None) -> None:
    """Draw the weight of every convolution and linear layer, including the classifier, and set biases to 0.

    Variances: `he` 2/fan-out, `he_fan_in` 2/fan-in, `xavier` 2/(fan-in + fan-out), `lecun` 1/fan-in, all normal.
    `he_fan_in_truncated` is `he_fan_in` without values beyond two standard deviations. `orthogonal` draws orthonormal
    rows or columns. None does not change the network.
    """
    if kind is None:
        return
    if kind not in INITIALIZATIONS:
        raise ValueError(
            f"The initialization of a {type(network).__name__} is {', '.join(INITIALIZATIONS)} or None, not {kind!r}."
        )
    for module in network.modules():
        if isinstance(module, _ConvNd | nn.Linear):
            INITIALIZATIONS[kind](module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
