"""Scalar layers against the plain composition α·(W ∗ (x + b₁) + b) + b₂ with elementwise scalars."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from normless.errors import UnsupportedEditError
from normless.nn import ScalarAffine, scalar_affine
from normless.nn.affine import ScalarConv1d, ScalarConv2d, ScalarConv3d, ScalarLinear, one_element

CONVOLUTION = {1: (nn.Conv1d, F.conv1d), 2: (nn.Conv2d, F.conv2d), 3: (nn.Conv3d, F.conv3d)}
PARTS = ("multiplier", "layer_scale", "input_bias", "output_bias")
part_sets = st.sets(st.sampled_from(PARTS))


def add_random_parts(layer: ScalarAffine, names: set[str]) -> None:
    for name in sorted(names):
        shape = (layer.weight.shape[0],) if name == "layer_scale" else (1,)
        layer.add_part(name, torch.randn(shape, dtype=layer.weight.dtype))


def scalars_of(layer: ScalarAffine) -> dict[str, Tensor]:
    return {name: getattr(layer, name) for name in PARTS if getattr(layer, name) is not None}


def assert_same_values_and_gradients(layer: ScalarAffine, x: Tensor, plain) -> None:
    """`plain(x, weight, bias, scalars)` is the composition written out; everything must agree to 1e-10."""
    leaves = {"x": x, "weight": layer.weight, **scalars_of(layer)}
    if layer.bias is not None:
        leaves["bias"] = layer.bias
    expected = plain(x, layer.weight, layer.bias, scalars_of(layer))
    actual = layer(x)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, list(leaves.values()), direction)
    found = torch.autograd.grad(actual, list(leaves.values()), direction)
    for name, one, other in zip(leaves, found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


def compose(y: Tensor, bias: Tensor | None, scalars: dict[str, Tensor], channel_shape: list[int]) -> Tensor:
    if bias is not None:
        y = y + bias.reshape(channel_shape)
    if "multiplier" in scalars:
        y = scalars["multiplier"] * y
    if "layer_scale" in scalars:
        y = scalars["layer_scale"].reshape(channel_shape) * y
    return y + scalars["output_bias"] if "output_bias" in scalars else y


@settings(max_examples=60, deadline=None)
@given(
    dimensions=st.sampled_from([1, 2, 2, 3]),
    groups=st.sampled_from([1, 2, 3]),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    parts=part_sets,
    seed=st.integers(0, 2**31),
)
def test_convolution_equals_the_plain_composition(
    dimensions: int,
    groups: int,
    kernel: int,
    stride: int,
    padding: int,
    dilation: int,
    bias: bool,
    parts: set[str],
    seed: int,
) -> None:
    torch.manual_seed(seed)
    kind, convolve = CONVOLUTION[dimensions]
    conv = kind(
        2 * groups, 3 * groups, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups, bias=bias
    ).double()
    layer = scalar_affine(conv)
    add_random_parts(layer, parts)
    x = torch.randn(2, 2 * groups, *[5, 6, 7][:dimensions], dtype=torch.float64, requires_grad=True)

    def plain(x: Tensor, weight: Tensor, bias: Tensor | None, scalars: dict[str, Tensor]) -> Tensor:
        h = x + scalars["input_bias"] if "input_bias" in scalars else x
        y = convolve(h, weight, None, stride, padding, dilation, groups)
        return compose(y, bias, scalars, [1, -1, *[1] * dimensions])

    assert_same_values_and_gradients(layer, x, plain)


@settings(max_examples=30, deadline=None)
@given(
    leading=st.lists(st.integers(1, 4), min_size=0, max_size=3),
    inputs=st.integers(1, 6),
    outputs=st.integers(1, 6),
    bias=st.booleans(),
    parts=part_sets,
    seed=st.integers(0, 2**31),
)
def test_linear_equals_the_plain_composition(
    leading: list[int], inputs: int, outputs: int, bias: bool, parts: set[str], seed: int
) -> None:
    torch.manual_seed(seed)
    layer = scalar_affine(nn.Linear(inputs, outputs, bias=bias).double())
    add_random_parts(layer, parts)
    x = torch.randn(*leading, inputs, dtype=torch.float64, requires_grad=True)

    def plain(x: Tensor, weight: Tensor, bias: Tensor | None, scalars: dict[str, Tensor]) -> Tensor:
        h = x + scalars["input_bias"] if "input_bias" in scalars else x
        return compose(h @ weight.T, bias, scalars, [-1])

    assert_same_values_and_gradients(layer, x, plain)


@pytest.mark.parametrize("padding_mode", ["circular", "reflect", "replicate"])
def test_other_padding_modes_pad_the_shifted_input(padding_mode: str) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, 3, padding=1, padding_mode=padding_mode).double()
    layer = scalar_affine(conv)
    add_random_parts(layer, set(PARTS))
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64, requires_grad=True)

    def plain(x: Tensor, weight: Tensor, bias: Tensor | None, scalars: dict[str, Tensor]) -> Tensor:
        h = F.pad(x + scalars["input_bias"], (1, 1, 1, 1), mode=padding_mode)
        return compose(F.conv2d(h, weight), bias, scalars, [1, -1, 1, 1])

    assert_same_values_and_gradients(layer, x, plain)


LAYERS = {
    "conv1d": (lambda: nn.Conv1d(2, 4, 3, padding="same", dilation=2), ScalarConv1d, (3, 2, 7)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2, bias=False), ScalarConv2d, (3, 2, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2), ScalarConv3d, (3, 2, 4, 4, 4)),
    "linear": (lambda: nn.Linear(2, 4), ScalarLinear, (3, 2)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_without_parts_it_is_the_torch_layer_bit_for_bit(case: str) -> None:
    build, kind, shape = LAYERS[case]
    torch.manual_seed(0)
    layer, x = build(), torch.randn(shape)
    expected = layer(x)
    scalar = scalar_affine(layer)
    assert type(scalar) is kind
    assert isinstance(scalar, type(layer))
    assert torch.equal(scalar(x), expected)


@pytest.mark.parametrize("case", LAYERS)
def test_everything_of_the_torch_layer_is_kept(case: str) -> None:
    build, _, shape = LAYERS[case]
    layer = build().double().eval().requires_grad_(False)
    calls = []
    handle = layer.register_forward_hook(lambda *_: calls.append("forward"))
    layer.note = "kept"
    weight, bias = layer.weight, layer.bias
    attributes = {name: getattr(layer, name) for name in layer.__constants__}
    scalar = scalar_affine(layer)
    assert scalar.weight is weight
    assert scalar.bias is bias
    assert scalar.weight.dtype is torch.float64
    assert not scalar.weight.requires_grad
    assert not scalar.training
    assert scalar.note == "kept"
    assert {name: getattr(scalar, name) for name in layer.__constants__} == attributes
    scalar(torch.randn(shape, dtype=torch.float64))
    assert calls == ["forward"]
    handle.remove()
    scalar(torch.randn(shape, dtype=torch.float64))
    assert calls == ["forward"]


class _OwnConv(nn.Conv2d):
    """A subclass whose forward may be anything."""


@pytest.mark.parametrize("layer", [nn.ConvTranspose2d(1, 1, 1), nn.ReLU(), nn.Bilinear(1, 1, 1), _OwnConv(1, 1, 1)])
def test_other_types_are_refused_by_name(layer: nn.Module) -> None:
    with pytest.raises(UnsupportedEditError, match=f"Linear, not into a {type(layer).__name__}"):
        scalar_affine(layer)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_added_once(part: str) -> None:
    layer = scalar_affine(nn.Linear(2, 3).double())
    add_random_parts(layer, {part})
    first = getattr(layer, part)
    assert isinstance(first, nn.Parameter)
    assert first.dtype is torch.float64
    with pytest.raises(UnsupportedEditError, match=f"the layer already has its {part.replace('_', ' ')}"):
        add_random_parts(layer, {part})
    assert getattr(layer, part) is first


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
