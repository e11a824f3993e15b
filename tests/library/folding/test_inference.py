"""Networks fused for inference compute what they computed, on plain layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from written_networks import Written

from normless import convert, fuse_for_inference
from normless.errors import UnsupportedEditError
from normless.folding.constants import ConstantConvolution
from normless.models import resnet_cifar, wide_resnet
from normless.nn import ResidualSum, scalar_affine
from normless.nn.affine import ScalarConv2d, ScalarLinear


def filled(network: nn.Module) -> nn.Module:
    """With every parameter and statistic at random values, in float64."""
    torch.manual_seed(0)
    network = network.double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
        for name, buffer in network.named_buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2.0) if "var" in name else buffer.normal_()
    return network


def images(size: int = 9) -> Tensor:
    return torch.randn(2, 3, size, size + 2, dtype=torch.float64)


@pytest.mark.parametrize("scheme", ["skipinit(alpha=0.5)", "fixup", "zeroinit"])
def test_resnets(scheme: str) -> None:
    network = filled(convert(resnet_cifar(14), scheme))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fused = fuse_for_inference(network, images())
    for size in (9, 12, 9):
        x = images(size)
        torch.testing.assert_close(fused(x), network(x), rtol=1e-9, atol=1e-9)
    assert not any(parameter.numel() == 1 for parameter in fused.parameters())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in fused.modules())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not any(parameter.requires_grad for parameter in fused.parameters())


def test_what_stays_is_refused_by_name() -> None:
    network = filled(wide_resnet(10, 1))
    with pytest.raises(UnsupportedEditError, match=r"blocks\.0\.norm1 is a FrozenAffine.*allow_partial=True"):
        fuse_for_inference(network, images())
    x = images()
    torch.testing.assert_close(
        fuse_for_inference(network, x, allow_partial=True)(x), network(x), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    ("options", "is_constant"),
    [
        ({"padding": 1}, True),
        ({"padding": "same"}, True),
        ({"padding": 1, "padding_mode": "circular"}, False),
        ({"padding": 0, "stride": 2}, False),
        ({"padding": 2, "groups": 2, "dilation": 2}, True),
    ],
)
def test_a_bias_before_a_convolution(options, is_constant: bool) -> None:
    layer = scalar_affine(nn.Conv2d(2, 4, 3, **options))
    for part in ("input_bias", "multiplier", "output_bias"):
        layer.add_part(part, torch.zeros(1))
    network = filled(nn.Sequential(layer))
    fused = fuse_for_inference(network)
    assert isinstance(fused[0], ConstantConvolution) == is_constant
    assert not isinstance(fused[0], ScalarConv2d)
    x = torch.randn(3, 2, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(fused(x), network(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(fused(x[0]), network(x[0]), rtol=1e-10, atol=1e-10)


def test_linear_layers_and_sums() -> None:
    layer, total = scalar_affine(nn.Linear(5, 5, bias=False)), ResidualSum()
    layer.add_part("input_bias", torch.zeros(1))
    layer.before, total.multiplier = nn.Dropout(0.5), nn.Parameter(torch.zeros(1))
    block = Written(lambda m, x: m.sum(x, m.layer(x).tanh()), layer=layer, sum=total)
    network, x = filled(block), torch.randn(4, 5, dtype=torch.float64)
    fused = fuse_for_inference(network)
    assert not any(isinstance(module, ScalarLinear) for module in fused.modules())
    assert fused.sum.multiplier is None
    torch.testing.assert_close(fused(x), network(x), rtol=1e-12, atol=1e-12)


def test_compiled_and_exported_networks_compute_the_constant_anew() -> None:
    network = filled(convert(resnet_cifar(8), "fixup"))
    fused, x = fuse_for_inference(network), images()
    exported = torch.export.export(fused, (x,), strict=False).module()
    torch.testing.assert_close(exported(x), network(x), rtol=1e-9, atol=1e-9)
