"""Fused networks overwrite a tensor only where nothing else, and no caller or hook, reads it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from written_networks import Written

from normless import convert, fuse_for_inference
from normless.folding.constants import ConstantActivation
from normless.models import resnet_cifar, wide_resnet
from normless.nn import ResidualSum
from normless.nn.in_place import InPlace


def randomized(network: nn.Module) -> nn.Module:
    """In float64 and eval mode, with random parameters and statistics."""
    torch.manual_seed(0)
    network = network.double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.2)
        for name, buffer in network.named_buffers():
            if buffer.is_floating_point():
                buffer.uniform_(0.5, 2.0) if "var" in name else buffer.normal_()
    return network


def images(size: int = 16) -> Tensor:
    return torch.randn(2, 3, size, size, dtype=torch.float64)


@torch.no_grad()
def assert_same(network: nn.Module, fused: nn.Module, x: Tensor) -> None:
    """The same outputs to 1e-12 of their size, twice, from an input left as it is."""
    given = x.clone()
    expected: Any = network(x)
    for _ in range(2):
        y: Any = fused(x)
        for one, other in zip(*((two,) if isinstance(two, Tensor) else two for two in (y, expected)), strict=True):
            torch.testing.assert_close(one / other.abs().max(), other / other.abs().max(), rtol=0, atol=1e-12)
    assert torch.equal(x, given)


def in_place(fused: nn.Module) -> list[str]:
    """The names of the modules that work in place without gradients."""
    with torch.no_grad():
        return [name for name, module in fused.named_modules() if isinstance(module, InPlace) and module.inplace]


@pytest.mark.parametrize("scheme", ["fixup", "sqrt2", "depth_mup"])
def test_resnets_work_in_place_throughout(scheme: str) -> None:
    network = randomized(convert(resnet_cifar(8), scheme))
    fused = fuse_for_inference(network, images())
    assert_same(network, fused, images())
    assert_same(network, fused, images(12))
    assert len(in_place(fused)) == 1 + 3 * 3
    assert not any(isinstance(module, InPlace) and module.inplace for module in fused.modules())
    shifts = [one.before + one.after for one in fused.modules() if isinstance(one, ConstantActivation)]
    assert not any(shifts)


@pytest.mark.parametrize("scheme", ["skipinit", "fixup"])
def test_the_first_activation_of_a_wide_resnets_block_keeps_its_input(scheme: str) -> None:
    network = randomized(convert(wide_resnet(10, 1), scheme))
    fused = fuse_for_inference(network, images())
    assert_same(network, fused, images())
    used = in_place(fused)
    assert not any(name.endswith("relu1") for name in used)
    assert {f"blocks.{index}.{name}" for index in range(3) for name in ("relu2", "sum")} <= set(used)


@pytest.mark.parametrize(
    ("network", "scheme"),
    [
        (lambda: torchvision.models.resnet18(num_classes=5), "sqrt2"),
        pytest.param(lambda: timm.create_model("resnetv2_18", num_classes=5), "fixup", marks=pytest.mark.slow),
        (lambda: timm.create_model("test_vit", num_classes=5, img_size=16), "skipinit"),
    ],
)
def test_networks_of_other_packages(network: Any, scheme: str) -> None:
    original = randomized(convert(network().eval(), scheme, images().float()))
    fused = fuse_for_inference(original, images(), allow_partial=True)
    assert_same(original, fused, images())


def written(code: Any) -> nn.Module:
    """Forward code given as a function of the module and x; its modules have three channels in and out."""
    convolutions = {name: nn.Conv2d(3, 3, 3, padding=1) for name in ("conv", "conv2")}
    rest = {"relu": nn.ReLU(), "sum": ResidualSum(), "dropout": nn.Dropout(), "idle": nn.Identity()}
    return Written(code, **convolutions, **rest, weight=nn.Parameter(torch.ones(3, 1, 1)))


def view_read_later(m: Any, x: Tensor) -> Tensor:
    h = m.conv(x)
    flat = h.flatten(1)
    return m.relu(h).flatten(1) + flat


def relu_at_two_places(m: Any, x: Tensor) -> Tensor:
    h = m.conv(m.relu(m.conv2(x)))
    return m.relu(h) * h


def expanded(m: Any, x: Tensor) -> Tensor:
    return m.relu(m.conv(x).mean(1, keepdim=True).expand(-1, 3, -1, -1))


def in_another_region(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.conv(x)
    return m.relu(h) + h


CODES: dict[str, tuple[Any, list[str]]] = {
    "chain": (lambda m, x: m.conv2(m.relu(m.conv(x))), ["relu"]),
    "idle layers between": (lambda m, x: m.relu(m.idle(m.dropout(m.conv(x)))), ["relu"]),
    "sum": (lambda m, x: m.relu(m.sum(x, m.conv(x))), ["relu", "sum"]),
    "input": (lambda m, x: m.conv(m.relu(x)), []),
    "sum with the input": (lambda m, x: m.sum(m.conv(x), x), []),
    "parameter": (lambda m, x: m.conv(x) * m.relu(m.weight), []),
    "read twice": (lambda m, x: (lambda h: m.relu(h) + h)(m.conv(x)), []),
    "read before": (lambda m, x: (lambda h: m.conv2(h) + m.relu(h))(m.conv(x)), []),
    "returned too": (lambda m, x: (lambda h: (m.relu(h), h))(m.conv(x)), []),
    "idle dropout, read twice": (lambda m, x: (lambda h: m.relu(m.dropout(h)) + h)(m.conv(x)), []),
    "view": (view_read_later, []),
    "part": (lambda m, x: (lambda h: m.relu(h[:, 1:]).sum(1) + h[:, 2])(m.conv(x)), []),
    "expanded": (expanded, []),
    "two places": (relu_at_two_places, []),
    "branch read later": (lambda m, x: (lambda h: m.sum(x, h) * h)(m.conv(x)), []),
    "skip read twice": (lambda m, x: (lambda h: m.sum(h, m.conv2(h)) * h)(m.conv(x)), ["sum"]),
    "written before": (lambda m, x: (lambda h: m.relu(h.add_(1)) + h)(m.conv(x)), []),
    "region": (in_another_region, []),
}


@pytest.mark.parametrize("case", CODES)
def test_forward_code(case: str) -> None:
    code, expected = CODES[case]
    network = randomized(written(code))
    fused = fuse_for_inference(network, images())
    assert_same(network, fused, images())
    assert in_place(fused) == expected


class Kept(dict[str, Any]):
    """Outputs and inputs of all modules of a network as hooks see them, not copied."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        for name, module in network.named_modules():
            module.register_forward_hook(
                lambda module, given, output, name=name: self.setdefault(name, []).append((*given, output))
            )


@torch.no_grad()
def test_hooks_see_what_they_saw() -> None:
    network = randomized(convert(resnet_cifar(8), "fixup"))
    fused, x = fuse_for_inference(network, images()), images()
    expected = fused(x)
    # Of the same network, with nothing in place.
    plain = deepcopy(fused)
    for module in plain.modules():
        if isinstance(module, InPlace):
            module._hooks_around = None
    kept, of_plain = Kept(fused), Kept(plain)
    torch.testing.assert_close(fused(x), expected, rtol=0, atol=0)
    plain(x)
    assert kept.keys() == of_plain.keys()
    for name in kept:
        for one, other in zip(kept[name], of_plain[name], strict=True):
            assert all(map(torch.equal, one, other)), name
    assert in_place(fuse_for_inference(network, images()))


@torch.no_grad()
@pytest.mark.parametrize("name", ["norm1", "relu1", "sum"])
def test_one_hook_in_a_block(name: str) -> None:
    network = randomized(convert(resnet_cifar(8), "skipinit"))
    fused, x, kept = fuse_for_inference(network, images()), images(), []
    handle = (
        fused.blocks[1]
        .get_submodule(name)
        .register_forward_hook(
            lambda module, given, output: kept.append((*given, output, *(one.clone() for one in (*given, output))))
        )
    )
    fused(x)
    tensors = kept[0]
    half = len(tensors) // 2
    assert all(map(torch.equal, tensors[:half], tensors[half:]))
    everywhere = nn.modules.module.register_module_forward_hook(lambda module, given, output: None)
    assert not in_place(fused)
    everywhere.remove()
    handle.remove()
    assert len(in_place(fused)) == 10
