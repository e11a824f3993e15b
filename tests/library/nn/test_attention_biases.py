"""torch's attention with a scalar bias before its projections, against the projections written out."""

from __future__ import annotations

import math
from copy import deepcopy

import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from normless.nn._affine import one_element, with_input_bias


def biased(first: float | None, last: float | None, **options: object) -> tuple[nn.MultiheadAttention, nn.Module]:
    """An attention with random weights, and the same with biases before its projections."""
    plain = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    made = with_input_bias(deepcopy(plain))
    out = with_input_bias(made.out_proj)
    made.out_proj = out
    for layer, value in ((made, first), (out, last)):
        if value is not None:
            layer.add_part("input_bias", one_element(value))
    return plain, made


def by_hand(plain: nn.MultiheadAttention, x: Tensor, memory: Tensor, first: Tensor, last: Tensor) -> Tensor:
    weights = plain.in_proj_weight.chunk(3)
    shifts = plain.in_proj_bias.chunk(3) if plain.in_proj_bias is not None else (0, 0, 0)
    q, k, v = (
        ((one + first) @ weight.T + shift).unflatten(-1, (2, 4)).transpose(1, 2)
        for one, weight, shift in zip((x, memory, memory), weights, shifts, strict=True)
    )
    found = ((q @ k.mT / math.sqrt(4)).softmax(-1) @ v).transpose(1, 2).flatten(2)
    bias = plain.out_proj.bias if plain.out_proj.bias is not None else 0
    return (found + last) @ plain.out_proj.weight.T + bias


@given(
    first=st.none() | st.floats(-2, 2, width=32),
    last=st.none() | st.floats(-2, 2, width=32),
    bias=st.booleans(),
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)),
    cross=st.booleans(),
)
@settings(deadline=None, max_examples=30)
def test_values_and_gradients(
    first: float | None, last: float | None, bias: bool, sizes: tuple[int, int, int], cross: bool
) -> None:
    plain, made = biased(first, last, bias=bias)
    batch, length, other = sizes
    x = torch.randn(batch, length, 8, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(batch, other, 8, dtype=torch.float64) if cross else x
    biases = [torch.tensor([value or 0.0], dtype=torch.float64, requires_grad=True) for value in (first, last)]
    expected = by_hand(plain, x, memory, *biases)
    actual, _ = made(x, memory, memory, need_weights=False)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(expected)
    named = dict(made.named_parameters())
    added = {
        name: one for name, one in zip(("input_bias", "out_proj.input_bias"), biases, strict=True) if name in named
    }
    assert named.keys() - dict(plain.named_parameters()).keys() == added.keys()
    wanted = torch.autograd.grad(expected, [x, *plain.parameters(), *added.values()], direction)
    names = [*(name for name, _ in plain.named_parameters()), *added]
    found = torch.autograd.grad(actual, [x, *(named[name] for name in names)], direction)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)
    with torch.no_grad():
        # The fused path of evaluation mode reads the same weights.
        torch.testing.assert_close(made.eval()(x, memory, memory)[0], expected.detach(), rtol=1e-9, atol=1e-10)
