"""Scalar layers against the plain composition α·(W ∗ (x + b₁) + b) + b₂ with elementwise scalars."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from normless.errors import UnsupportedEditError
from normless.nn import ScalarAffine, ShiftedActivation, scalar_affine
from normless.nn.affine import (
    ScalarConv1d,
    ScalarConv2d,
    ScalarConv3d,
    ScalarLinear,
    one_element,
    outputs_of,
    takes_scalars,
    with_input_bias,
)
from normless.nn.standardized import scaled_std

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


LAYERS: dict[str, tuple[Callable[[], nn.Module], type[nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, padding="same", dilation=2), ScalarConv1d, (3, 2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, bias=False), ScalarConv2d, (3, 2, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2), ScalarConv3d, (3, 2, 4, 4, 4)),
    "linear": (lambda: nn.Linear(2, 4), ScalarLinear, (3, 2)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_without_parts_it_is_the_torch_layer_bit_for_bit_with_all_that_it_has(case: str) -> None:
    build, kind, shape = LAYERS[case]
    layer = build().double().eval().requires_grad_(False)
    calls: list[int] = []
    handle = layer.register_forward_hook(lambda *_: calls.append(1))
    layer.note = "kept"
    weight, bias, x = layer.weight, layer.bias, torch.randn(shape, dtype=torch.float64)
    attributes, expected = {name: getattr(layer, name) for name in layer.__constants__}, layer(x)
    scalar = scalar_affine(layer)
    assert type(scalar) is kind
    assert isinstance(scalar, type(build()))
    assert torch.equal(scalar(x), expected)
    assert scalar.weight is weight
    assert scalar.bias is bias
    assert (scalar.weight.requires_grad, scalar.training) == (False, False)
    assert scalar.note == "kept"
    assert {name: getattr(scalar, name) for name in layer.__constants__} == attributes
    handle.remove()
    scalar(x)
    assert calls == [1, 1]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_has_the_type_of_the_layer(part: str) -> None:
    layer = with_random_parts(scalar_affine(nn.Linear(2, 3).double()), {part})
    assert isinstance(getattr(layer, part), nn.Parameter)
    assert getattr(layer, part).dtype is torch.float64
    if part.endswith("bias"):
        activation = ShiftedActivation(nn.ReLU())
        activation.add_part(part, torch.ones(3, dtype=torch.float64))
        assert torch.equal(activation.get_parameter(part), torch.zeros(1, dtype=torch.float64))


def test_a_parameter_given_as_a_part_is_shared() -> None:
    one, other = scalar_affine(nn.Linear(2, 3)), scalar_affine(nn.Linear(2, 3))
    one.add_part("input_bias", one_element(0.0))
    assert one.input_bias is not None
    other.add_part("input_bias", one.input_bias)
    assert other.input_bias is one.input_bias
    x = torch.randn(4, 2)
    (one(x).sum() + other(x).sum()).backward()
    torch.testing.assert_close(one.input_bias.grad, 4 * (one.weight.sum() + other.weight.sum()).reshape(1))


def test_the_input_passes_before_first_and_then_the_input_bias() -> None:
    layer = scalar_affine(nn.Linear(3, 2))
    layer.before = nn.ReLU()
    layer.add_part("input_bias", torch.tensor([0.7]))
    x = torch.randn(5, 3)
    torch.testing.assert_close(layer(x), F.linear(torch.relu(x) + 0.7, layer.weight, layer.bias))


class OwnConv(nn.Conv2d):
    """A subclass whose forward may be anything."""


def added(layer: Any, *parts: str) -> None:
    for part in parts:
        layer.add_part(part, torch.ones(1))


def attention() -> nn.Module:
    return with_input_bias(nn.MultiheadAttention(4, 1))


OTHERS = (nn.ConvTranspose2d(1, 1, 1), nn.ReLU(), nn.Bilinear(1, 1, 1), OwnConv(1, 1, 1))
NARROW = (nn.Conv2d(4, 4, 1, groups=4), nn.Linear(1, 3))
REFUSED: list[tuple[Callable[[], object], str]] = [
    *((lambda one=one: scalar_affine(one), f"Linear, not into a {type(one).__name__}") for one in OTHERS),
    *((lambda one=one: scaled_std(one), "each output reads one value") for one in NARROW),
    (lambda: scaled_std(Conv1D(7, 4)), "in convolutions and linear layers, not in a Conv1D"),
    *((lambda part=part: added(scalar_affine(nn.Linear(2, 1)), part, part), "already has its") for part in PARTS),
    *((lambda part=part: added(ShiftedActivation(nn.ReLU()), part, part), "already has its") for part in PARTS[2:]),
    (lambda: added(attention(), "input_bias", "input_bias"), "already has its input bias"),
    (lambda: added(attention(), "output_bias"), "takes an input bias, no output bias"),
]


@pytest.mark.parametrize(("call", "said"), REFUSED)
def test_layers_without_a_place_for_it_are_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(UnsupportedEditError, match=said):
        call()
