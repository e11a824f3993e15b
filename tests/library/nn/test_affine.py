"""Layers with scalar parts against plain compositions of operators."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from normless.errors import UnsupportedEditError
from normless.nn import ScalarAffine, scalar_affine
from normless.nn.affine import (
    ScalarConv1d,
    ScalarConv2d,
    ScalarConv3d,
    ScalarLinear,
    ScalarMultiheadAttention,
    is_attention,
    one_element,
    outputs_of,
    takes_scalars,
    with_input_bias,
)
from normless.nn.standardized import scaled_std

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
    with pytest.raises(
        UnsupportedEditError, match=rf"Conv1d, Conv2d, Conv3d, Linear, not into a {type(layer).__name__}"
    ):
        scalar_affine(layer)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_added_once(part: str) -> None:
    layer = scalar_affine(nn.Linear(2, 3))
    add_random_parts(layer, {part})
    first = getattr(layer, part)
    with pytest.raises(UnsupportedEditError, match=f"the layer already has its {part.replace('_', ' ')}"):
        add_random_parts(layer, {part})
    assert getattr(layer, part) is first


def test_a_part_takes_the_dtype_of_the_weight() -> None:
    layer = scalar_affine(nn.Linear(2, 3).double())
    layer.add_part("multiplier", one_element(0.5))
    assert isinstance(layer.multiplier, nn.Parameter)
    assert layer.multiplier.dtype is torch.float64
    assert layer.multiplier.shape == (1,)
    assert layer.multiplier.requires_grad


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


@given(
    parts=st.sets(st.sampled_from(PARTS)),
    inputs=st.integers(1, 5),
    outputs=st.integers(1, 5),
    batch=st.sampled_from([(3,), (2, 3), (2, 1, 4)]),
)
@settings(deadline=None, max_examples=30)
def test_it_is_the_linear_layer(parts: set[str], inputs: int, outputs: int, batch: tuple[int, ...]) -> None:
    sideways, upright = Conv1D(outputs, inputs).double(), nn.Linear(inputs, outputs).double()
    sideways.weight.data = upright.weight.data.T.clone()
    sideways.bias.data = upright.bias.data.clone()
    one, other = scalar_affine(sideways), scalar_affine(upright)
    assert one.weight is sideways.weight
    for name in sorted(parts):
        value = torch.randn(outputs if name == "layer_scale" else 1, dtype=torch.float64)
        one.add_part(name, value.clone())
        other.add_part(name, value.clone())
    x = torch.randn(*batch, inputs, dtype=torch.float64)
    torch.testing.assert_close(one(x), other(x))
    one(x).square().sum().backward()
    other(x).square().sum().backward()
    for name, parameter in other.named_parameters():
        found = one.get_parameter(name).grad
        assert found is not None
        torch.testing.assert_close(found.T if name == "weight" else found, parameter.grad)


def test_what_is_known_of_it() -> None:
    layer = Conv1D(7, 4)
    assert takes_scalars(layer)
    assert outputs_of(layer, layer.weight) == outputs_of(scalar_affine(layer), layer.weight) == 7
    assert outputs_of(nn.Linear(4, 7), nn.Linear(4, 7).weight) == 7
    with pytest.raises(UnsupportedEditError, match="standardized in convolutions and linear layers, not in a Conv1D"):
        scaled_std(layer)


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


def by_hand(plain: nn.MultiheadAttention, x: Tensor, memory: Tensor, first: float, last: float) -> Tensor:
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
    expected = by_hand(plain, x, memory, first or 0.0, last or 0.0)
    actual, _ = made(x, memory, memory, need_weights=False)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    direction = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, [x, *plain.parameters()], direction)
    named = dict(made.named_parameters())
    found = torch.autograd.grad(actual, [x, *(named[name] for name, _ in plain.named_parameters())], direction)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-10)
    with torch.no_grad():
        # The fused path of evaluation mode reads the same weights.
        torch.testing.assert_close(made.eval()(x, memory, memory)[0], expected.detach(), rtol=1e-9, atol=1e-10)


def test_the_biases_learn_and_the_weights_keep_their_names() -> None:
    plain, made = biased(0.0, 0.0)
    assert made.state_dict().keys() - plain.state_dict().keys() == {"input_bias", "out_proj.input_bias"}
    assert plain.state_dict().keys() <= made.state_dict().keys()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    made(x, x, x)[0].square().sum().backward()
    # A step along the gradient by finite differences.
    for name in ("input_bias", "out_proj.input_bias"):
        parameter, gradient = made.get_parameter(name), made.get_parameter(name).grad.clone()
        with torch.no_grad():
            parameter.fill_(1e-6)
            above = made(x, x, x)[0].square().sum()
            parameter.fill_(-1e-6)
            below = made(x, x, x)[0].square().sum()
            parameter.zero_()
        assert gradient.item() == pytest.approx((above - below).item() / 2e-6, rel=1e-5)


def test_only_an_input_bias_and_only_once() -> None:
    _, made = biased(0.1, None)
    with pytest.raises(UnsupportedEditError, match="already has its input bias"):
        made.add_part("input_bias", one_element(0.0))
    with pytest.raises(UnsupportedEditError, match="takes an input bias, no output bias"):
        made.add_part("output_bias", one_element(0.0))
    assert is_attention(made)
    assert isinstance(made, ScalarMultiheadAttention)

    class Own(nn.MultiheadAttention):
        pass

    assert not is_attention(Own(4, 1))
