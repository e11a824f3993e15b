"""φ(s·x) between its biases."""

from __future__ import annotations

import torch
from torch import nn

from normless.nn.activation import ScaledActivation


def test_the_input_is_scaled_before_the_biases() -> None:
    activation = ScaledActivation(nn.SiLU(), 0.5)
    x = torch.randn(7)
    assert torch.equal(activation(x), nn.functional.silu(0.5 * x))
    for name, value in (("input_bias", 0.3), ("output_bias", -0.1)):
        activation.add_part(name, x)
        nn.init.constant_(getattr(activation, name), value)
    torch.testing.assert_close(activation(x), nn.functional.silu(0.5 * x + 0.3) - 0.1)
    assert "scale=0.5" in repr(activation)
