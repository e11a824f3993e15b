"""Scalar layers against the plain composition α·(W ∗ (x + b₁) + b) + b₂ with elementwise scalars."""

from __future__ import annotations

from copy import deepcopy

import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from normless.nn import ScalarAffine
from normless.nn._affine import (
    outputs_of,
    scalar_affine,
    takes_scalars,
)

CONVOLUTION: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
PARTS = ("multiplier", "layer_scale", "input_bias", "output_bias")
part_sets = st.sets(st.sampled_from(PARTS))


def with_random_parts(layer: ScalarAffine, names: set[str]) -> ScalarAffine:
    for name in sorted(names):
        shape = (layer.weight.shape[0],) if name == "layer_scale" else (1,)
        layer.add_part(name, torch.randn(shape, dtype=layer.weight.dtype))
    return layer


def composed(plain: nn.Module, x: Tensor, layer: ScalarAffine, channels: list[int]) -> Tensor:
    """The composition written out around torch's layer, with the parameters of the other."""
    h = x if layer.input_bias is None else x + layer.input_bias
    without = {} if layer.bias is None else {"bias": torch.zeros_like(layer.bias)}
    y: Tensor = torch.func.functional_call(plain, {"weight": layer.weight, **without}, (h,))
    y = y if layer.bias is None else y + layer.bias.reshape(channels)
    y = y if layer.multiplier is None else layer.multiplier * y
    y = y if layer.layer_scale is None else layer.layer_scale.reshape(channels) * y
    return y if layer.output_bias is None else y + layer.output_bias


def assert_composition(plain: nn.Module, shape: tuple[int, ...], parts: set[str], channels: list[int]) -> None:
    """Values and all gradients agree."""
    layer = with_random_parts(scalar_affine(deepcopy(plain)), parts)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected, actual = composed(plain, x, layer, channels), layer(x)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    leaves = {"x": x, **dict(layer.named_parameters())}
    assert parts <= leaves.keys()
    direction = torch.randn_like(expected)
    found, wanted = (torch.autograd.grad(one, [*leaves.values()], direction) for one in (actual, expected))
    for name, one, other in zip(leaves, found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@settings(max_examples=80, deadline=None)
@given(
    dimensions=st.sampled_from([1, 2, 2, 3]),
    groups=st.sampled_from([1, 2, 3]),
    kernel=st.integers(1, 3),
    steps=st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(1, 2)),
    mode=st.sampled_from(["zeros", "zeros", "circular", "reflect", "replicate"]),
    bias=st.booleans(),
    parts=part_sets,
)
def test_convolution_equals_the_plain_composition(
    dimensions: int, groups: int, kernel: int, steps: tuple[int, int, int], mode: str, bias: bool, parts: set[str]
) -> None:
    """The other padding modes pad the shifted input."""
    make = CONVOLUTION[dimensions]
    plain = make(2 * groups, 3 * groups, kernel, *steps, groups=groups, padding_mode=mode, bias=bias).double()
    assert_composition(plain, (2, 2 * groups, *[5, 6, 7][:dimensions]), parts, [1, -1, *[1] * dimensions])


@settings(max_examples=30, deadline=None)
@given(
    leading=st.lists(st.integers(1, 4), min_size=0, max_size=3),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    bias=st.booleans(),
    parts=part_sets,
)
def test_linear_equals_the_plain_composition(
    leading: list[int], sizes: tuple[int, int], bias: bool, parts: set[str]
) -> None:
    assert_composition(nn.Linear(*sizes, bias=bias).double(), (*leading, sizes[0]), parts, [-1])


@settings(deadline=None, max_examples=30)
@given(parts=part_sets, inputs=st.integers(1, 5), outputs=st.integers(1, 5), batch=st.sampled_from([(3,), (2, 1, 4)]))
def test_the_transposed_layer_of_transformers_is_the_linear_layer(
    parts: set[str], inputs: int, outputs: int, batch: tuple[int, ...]
) -> None:
    sideways, upright = Conv1D(outputs, inputs).double(), nn.Linear(inputs, outputs).double()
    sideways.weight.data, sideways.bias.data = upright.weight.data.T.clone(), upright.bias.data.clone()
    assert takes_scalars(sideways)
    assert outputs_of(sideways, sideways.weight) == outputs_of(upright, upright.weight) == outputs
    one, other = scalar_affine(sideways), with_random_parts(scalar_affine(upright), parts)
    assert one.weight is sideways.weight
    assert outputs_of(one, one.weight) == outputs
    for name in sorted(parts):
        one.add_part(name, getattr(other, name).detach().clone())
    x = torch.randn(*batch, inputs, dtype=torch.float64)
    torch.testing.assert_close(one(x), other(x))
    one(x).square().sum().backward()
    other(x).square().sum().backward()
    for name, parameter in other.named_parameters():
        found = one.get_parameter(name).grad
        assert found is not None
        torch.testing.assert_close(found.T if name == "weight" else found, parameter.grad)
