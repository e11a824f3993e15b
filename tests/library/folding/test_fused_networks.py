"""Networks fused for inference or folded compute what they computed; what they overwrite is read by nothing else."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import timm
import torch
import torchvision
from fold_helpers import filled, randomize
from torch import Tensor, nn
from written_networks import Written

import normless as nl
from normless import convert, fuse_for_inference
from normless.affine._in_place import ConstantActivation
from normless.models import resnet_cifar, wide_resnet
from normless.nn import ResidualSum
from normless.nn._affine import ScalarConv2d, scalar_affine
from normless.nn._in_place import InPlace

close = torch.testing.assert_close


def images(size: int = 16) -> Tensor:
    return torch.randn(2, 3, size, size + 2, dtype=torch.float64)


@torch.no_grad()
def assert_same(network: nn.Module, fused: nn.Module, x: Tensor) -> None:
    """The same outputs to 1e-12 of their size, twice, from an input left as it is."""
    given = x.clone()
    expected: Any = network(x)
    for _ in range(2):
        y: Any = fused(x)
        for one, other in zip(*((two,) if isinstance(two, Tensor) else two for two in (y, expected)), strict=True):
            close(one / other.abs().max(), other / other.abs().max(), rtol=0, atol=1e-12)
    assert torch.equal(x, given)


def in_place(fused: nn.Module) -> list[str]:
    """The names of the modules that work in place without gradients."""
    with torch.no_grad():
        return [name for name, module in fused.named_modules() if isinstance(module, InPlace) and module.inplace]


@pytest.mark.parametrize("scheme", ["fixup", "depth_mup", "zeroinit"])
def test_cifar_resnets_are_plain_layers_that_work_in_place_throughout(scheme: str) -> None:
    network = filled(convert(resnet_cifar(8), scheme))
    before = deepcopy(network.state_dict())
    fused = fuse_for_inference(network, images())
    for size in (16, 12, 16):
        assert_same(network, fused, images(size))
    assert len(in_place(fused)) == 1 + 3 * 3
    assert not any(isinstance(module, InPlace) and module.inplace for module in fused.modules())
    assert not any(one.before + one.after for one in fused.modules() if isinstance(one, ConstantActivation))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    assert not any(parameter.numel() == 1 or parameter.requires_grad for parameter in fused.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize(
    ("network", "scheme"),
    [
        (lambda: wide_resnet(10, 1), "batch_norm"),
        (lambda: torchvision.models.resnet18(num_classes=5), "sqrt2"),
        (lambda: timm.create_model("test_vit", num_classes=5, img_size=16), "skipinit"),
    ],
)
def test_networks_with_parts_that_stay(network: Any, scheme: str) -> None:
    x = torch.randn(2, 3, 16, 16)
    original = filled(convert(network().eval(), scheme, x))
    assert_same(original, fuse_for_inference(original, x.double(), allow_partial=True), x.double())


@pytest.mark.parametrize(
    ("options", "is_padded"),
    [
        ({"padding": "same"}, True),
        ({"padding": 0, "stride": 2}, False),
        ({"padding": 2, "groups": 2, "dilation": 2}, True),
    ],
)
def test_a_bias_before_a_convolution(options: dict[str, Any], is_padded: bool) -> None:
    layer = scalar_affine(nn.Conv2d(2, 4, 3, **options))
    for part in ("input_bias", "multiplier", "output_bias"):
        layer.add_part(part, torch.zeros(1))
    network, x = filled(nn.Sequential(layer)), torch.randn(3, 2, 7, 8, dtype=torch.float64)
    fused = fuse_for_inference(network)
    assert isinstance(fused.get_submodule("0"), nn.Sequential) == is_padded
    assert not isinstance(fused.get_submodule("0"), ScalarConv2d)
    close(fused(x), network(x), rtol=1e-10, atol=1e-10)
    close(fused(x[0]), network(x[0]), rtol=1e-10, atol=1e-10)


def view_read_later(m: Any, x: Tensor) -> Any:
    h = m.conv(x)
    flat = h.flatten(1)
    return m.relu(h).flatten(1) + flat


def in_another_region(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = m.conv(x)
    return m.relu(h) + h


CODES: dict[str, tuple[Callable[[Any, Tensor], Any], list[str]]] = {
    "chain": (lambda m, x: m.conv2(m.relu(m.conv(x))), ["relu"]),
    "idle layers between": (lambda m, x: m.relu(m.idle(m.dropout(m.conv(x)))), ["relu"]),
    "sum": (lambda m, x: m.relu(m.sum(x, m.conv(x))), ["relu", "sum"]),
    "input": (lambda m, x: m.conv(m.relu(x)), []),
    "parameter": (lambda m, x: m.conv(x) * m.relu(m.weight), []),
    "read twice": (lambda m, x: m.relu(h := m.conv(x)) + h, []),
    "idle dropout, read twice": (lambda m, x: m.relu(m.dropout(h := m.conv(x))) + h, []),
    "view": (view_read_later, []),
    "expanded": (lambda m, x: m.relu(m.conv(x).mean(1, keepdim=True).expand(-1, 3, -1, -1)), []),
    "skip read twice": (lambda m, x: m.sum(h := m.conv(x), m.conv2(h)) * h, ["sum"]),
    "written before": (lambda m, x: m.relu((h := m.conv(x)).add_(1)) + h, []),
    "region": (in_another_region, []),
}


@pytest.mark.parametrize("case", CODES)
def test_what_forward_code_overwrites(case: str) -> None:
    code, expected = CODES[case]
    parts = {name: nn.Conv2d(3, 3, 3, padding=1) for name in ("conv", "conv2")}
    rest = {"relu": nn.ReLU(), "sum": ResidualSum(), "dropout": nn.Dropout(), "idle": nn.Identity()}
    network = filled(Written(code, **parts, **rest, weight=nn.Parameter(torch.ones(3, 1, 1))))
    fused = fuse_for_inference(network, images())
    assert_same(network, fused, images())
    assert in_place(fused) == expected


SMALL = torch.randn(2, 3, 16, 16)


def test_half_precision_weights_are_folded_in_full_precision() -> None:
    half = randomize(wide_resnet(16, 1)).eval().bfloat16()
    new, report = nl.fold(half, SMALL.bfloat16())
    reference, _ = nl.fold(deepcopy(half).double(), SMALL.double())
    for name in {layer for norm in report.norms for layer in norm.layers}:
        exact = reference.get_parameter(f"{name}.weight").bfloat16()
        assert torch.equal(new.get_parameter(f"{name}.weight"), exact)
