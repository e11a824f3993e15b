"""Standardized layers against the formula written out."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from normless.nn._standardized import scaled_std

LAYERS = {
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (2, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (2, 4, 5, 5)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), (2, 4, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(4, 6, 2), (2, 4, 3, 3, 3)),
    "linear": (lambda: nn.Linear(4, 6), (3, 2, 4)),
}


def by_hand(weight: Tensor, gain: Tensor, scale: float = 1.0) -> Tensor:
    """The formula, channel by channel."""
    rows = []
    for row, g in zip(weight, gain, strict=True):
        deviation = torch.sqrt(((row - row.mean()) ** 2).mean())
        rows.append(scale * g * (row - row.mean()) / (deviation * row.numel() ** 0.5))
    return torch.stack(rows)


@pytest.mark.parametrize("name", LAYERS)
def test_the_layer_and_its_gradients_are_torchs_with_the_standardized_weight(name: str) -> None:
    build, shape = LAYERS[name]
    layer = build().double()
    plain, x = deepcopy(layer), torch.randn(shape, dtype=torch.float64)
    new = scaled_std(layer)
    assert new.weight is layer.weight
    assert torch.equal(new.gain.detach(), torch.ones(6, dtype=torch.float64))
    new.scale = 0.7
    with torch.no_grad():
        new.gain.copy_(torch.randn(6))
    named = dict(new.named_parameters())
    weights = {"weight": by_hand(new.weight, new.gain, 0.7)} | {key: named[key] for key in ("bias",) if key in named}
    actual, expected = new(x), torch.func.functional_call(plain, weights, (x,))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    direction = torch.randn_like(actual)
    found, wanted = (torch.autograd.grad(one, [*named.values()], direction) for one in (actual, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_constant_weight_gives_zero_and_finite_gradients(value: float) -> None:
    layer = scaled_std(nn.Linear(4, 2, bias=False))
    nn.init.constant_(layer.weight, value)
    y = layer(torch.randn(3, 4))
    assert not y.any()
    y.sum().backward()
    assert layer.weight.grad.isfinite().all()
