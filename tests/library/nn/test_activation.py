"""ShiftedActivation against φ(x + b₁) + b₂ written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normless.nn._activation import ShiftedActivation

ACTIVATIONS = {
    "relu": nn.ReLU,
    "relu_inplace": lambda: nn.ReLU(inplace=True),
    "silu": nn.SiLU,
    "leaky_relu": lambda: nn.LeakyReLU(0.2),
    "prelu": lambda: nn.PReLU().double(),
}
COMBINATIONS = [(), ("input_bias",), ("output_bias",), ("input_bias", "output_bias")]


def shifted(name: str, biases: tuple[str, ...]) -> ShiftedActivation:
    module = ShiftedActivation(ACTIVATIONS[name]())
    for bias in biases:
        module.add_part(bias, torch.zeros(1, dtype=torch.float64))
        with torch.no_grad():
            getattr(module, bias).copy_(torch.randn(1))
    return module


def plain(name: str, x: Tensor, module: ShiftedActivation) -> Tensor:
    h = x.clone() if module.input_bias is None else x + module.input_bias
    y = torch.relu(h) if name.startswith("relu") else module.activation(h)
    return y if module.output_bias is None else y + module.output_bias


@pytest.mark.parametrize("biases", COMBINATIONS, ids="-".join)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_gradients_equal_the_plain_composition(name: str, biases: tuple[str, ...]) -> None:
    torch.manual_seed(1)
    module = shifted(name, biases)
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    leaves = [leaf, *module.parameters()]
    expected, actual = plain(name, leaf, module), module(leaf.clone())
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, leaves, direction)
    found = torch.autograd.grad(actual, leaves, direction)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [-0.3, 0.7])
def test_relu_passes_the_gradient_exactly_where_its_input_is_positive(dtype: torch.dtype, bias: float) -> None:
    """Also where b is rounded to the dtype of x, up or down, as under autocast."""
    module = ShiftedActivation(nn.ReLU())
    module.add_part("output_bias", torch.zeros(1))
    nn.init.constant_(module.output_bias, bias)
    x = torch.tensor([-2.0, -1.0, -1e-6, 0.0, 0.05, 0.1, 1.0, 9.0]).to(dtype).requires_grad_()
    module(x).backward(torch.ones(8, dtype=module(x).dtype))
    assert x.grad is not None
    assert x.grad.tolist() == [0.0] * 4 + [1.0] * 4
