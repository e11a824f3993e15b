"""Networks fused for inference or folded compute what they computed; what they overwrite is read by nothing else."""

from __future__ import annotations

import io
import pickle
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
from normless.folding.constants import ConstantActivation, ConstantConvolution
from normless.models import resnet_cifar, wide_resnet
from normless.nn import FrozenAffine, ResidualSum, scalar_affine
from normless.nn.affine import ScalarConv2d, ScalarLinear
from normless.nn.in_place import InPlace

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


@pytest.mark.parametrize("scheme", ["fixup", "sqrt2", "depth_mup", "skipinit(alpha=0.5)", "zeroinit"])
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


@pytest.mark.parametrize("scheme", ["skipinit", "fixup"])
def test_the_first_activation_of_a_wide_resnets_block_keeps_its_input(scheme: str) -> None:
    network = filled(convert(wide_resnet(10, 1), scheme))
    fused = fuse_for_inference(network, images())
    assert_same(network, fused, images())
    used = in_place(fused)
    assert not any(name.endswith("relu1") for name in used)
    assert {f"blocks.{index}.{name}" for index in range(3) for name in ("relu2", "sum")} <= set(used)


@pytest.mark.parametrize(
    ("network", "scheme"),
    [
        (lambda: wide_resnet(10, 1), "batch_norm"),
        (lambda: torchvision.models.resnet18(num_classes=5), "sqrt2"),
        pytest.param(lambda: timm.create_model("resnetv2_18", num_classes=5), "fixup", marks=pytest.mark.slow),
        (lambda: timm.create_model("test_vit", num_classes=5, img_size=16), "skipinit"),
    ],
)
def test_networks_with_parts_that_stay(network: Any, scheme: str) -> None:
    x = torch.randn(2, 3, 16, 16)
    original = filled(convert(network().eval(), scheme, x))
    assert_same(original, fuse_for_inference(original, x.double(), allow_partial=True), x.double())


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
def test_a_bias_before_a_convolution(options: dict[str, Any], is_constant: bool) -> None:
    layer = scalar_affine(nn.Conv2d(2, 4, 3, **options))
    for part in ("input_bias", "multiplier", "output_bias"):
        layer.add_part(part, torch.zeros(1))
    network, x = filled(nn.Sequential(layer)), torch.randn(3, 2, 7, 8, dtype=torch.float64)
    fused = fuse_for_inference(network)
    assert isinstance(fused.get_submodule("0"), ConstantConvolution) == is_constant
    assert not isinstance(fused.get_submodule("0"), ScalarConv2d)
    close(fused(x), network(x), rtol=1e-10, atol=1e-10)
    close(fused(x[0]), network(x[0]), rtol=1e-10, atol=1e-10)


def test_linear_layers_and_sums() -> None:
    layer, total = scalar_affine(nn.Linear(5, 5, bias=False)), ResidualSum()
    layer.add_part("input_bias", torch.zeros(1))
    layer.before, total.multiplier = nn.Dropout(0.5), nn.Parameter(torch.zeros(1))
    network = filled(Written(lambda m, x: m.sum(x, m.layer(x).tanh()), layer=layer, sum=total))
    fused: Any = fuse_for_inference(network)
    assert not any(isinstance(module, ScalarLinear) for module in fused.modules())
    assert fused.sum.multiplier is None
    assert_same(network, fused, torch.randn(4, 5, dtype=torch.float64))


def test_exported_networks_compute_the_constant_anew() -> None:
    network, x = filled(convert(resnet_cifar(8), "fixup")), images()
    exported = torch.export.export(fuse_for_inference(network), (x,), strict=False).module()
    close(exported(x), network(x), rtol=1e-9, atol=1e-9)


def view_read_later(m: Any, x: Tensor) -> Any:
    h = m.conv(x)
    flat = h.flatten(1)
    return m.relu(h).flatten(1) + flat


def relu_at_two_places(m: Any, x: Tensor) -> Any:
    h = m.conv(m.relu(m.conv2(x)))
    return m.relu(h) * h


def in_another_region(m: Any, x: Tensor) -> Any:
    with torch.no_grad():
        h = m.conv(x)
    return m.relu(h) + h


CODES: dict[str, tuple[Callable[[Any, Tensor], Any], list[str]]] = {
    "chain": (lambda m, x: m.conv2(m.relu(m.conv(x))), ["relu"]),
    "idle layers between": (lambda m, x: m.relu(m.idle(m.dropout(m.conv(x)))), ["relu"]),
    "sum": (lambda m, x: m.relu(m.sum(x, m.conv(x))), ["relu", "sum"]),
    "input": (lambda m, x: m.conv(m.relu(x)), []),
    "sum with the input": (lambda m, x: m.sum(m.conv(x), x), []),
    "parameter": (lambda m, x: m.conv(x) * m.relu(m.weight), []),
    "read twice": (lambda m, x: m.relu(h := m.conv(x)) + h, []),
    "read before": (lambda m, x: m.conv2(h := m.conv(x)) + m.relu(h), []),
    "returned too": (lambda m, x: (m.relu(h := m.conv(x)), h), []),
    "idle dropout, read twice": (lambda m, x: m.relu(m.dropout(h := m.conv(x))) + h, []),
    "view": (view_read_later, []),
    "part": (lambda m, x: m.relu((h := m.conv(x))[:, 1:]).sum(1) + h[:, 2], []),
    "expanded": (lambda m, x: m.relu(m.conv(x).mean(1, keepdim=True).expand(-1, 3, -1, -1)), []),
    "two places": (relu_at_two_places, []),
    "branch read later": (lambda m, x: m.sum(x, h := m.conv(x)) * h, []),
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


def keep(network: nn.Module, path: str | None = None) -> dict[str, Any]:
    """Outputs and inputs of all modules, or of one, as hooks see them, not copied, and copies of them."""
    kept: dict[str, Any] = {}

    def hook(name: str, given: tuple[Tensor, ...], output: Tensor) -> None:
        kept.setdefault(name, []).append(((*given, output), [one.clone() for one in (*given, output)]))

    for name, module in network.named_modules():
        if path in (None, name):
            module.register_forward_hook(lambda _, given, output, name=name: hook(name, given, output))
    return kept


@torch.no_grad()
@pytest.mark.parametrize("path", [None, "blocks.1.norm1", "blocks.1.relu1", "blocks.1.sum"])
def test_hooks_see_what_they_saw(path: str | None) -> None:
    network, x = filled(convert(resnet_cifar(8), "fixup" if path is None else "skipinit")), images()
    fused = fuse_for_inference(network, x)
    expected, plain = fused(x), deepcopy(fused)
    # Of the same network, with nothing in place.
    for module in plain.modules():
        if isinstance(module, InPlace):
            module._hooks_around = None
    kept, of_plain = keep(fused, path), keep(plain, path)
    close(fused(x), expected, rtol=0, atol=0)
    plain(x)
    for name, calls in of_plain.items():
        for (tensors, copies), (others, _) in zip(kept[name], calls, strict=True):
            assert all(map(torch.equal, tensors, others)), name
            # A shifted convolution itself writes to what the plain one inside it returns.
            assert path is None or all(map(torch.equal, tensors, copies)), name
    fresh = fuse_for_inference(network, x)
    everywhere = nn.modules.module.register_module_forward_hook(lambda module, given, output: None)
    assert not in_place(fresh)
    everywhere.remove()
    assert len(in_place(fresh)) == 10


SMALL = torch.randn(2, 3, 16, 16)


@pytest.mark.filterwarnings("default")  # the compiler's own
def test_a_folded_network_is_an_ordinary_module() -> None:
    """Copied, pickled, saved, compiled and exported; it trains at batch size one."""
    model = randomize(wide_resnet(16, 1)).eval()
    net, report = nl.fold(model, SMALL)
    # Both kinds of outcome: half of the norms of a pre-activation network read sums.
    assert min(report.counts["folded"], report.counts["affine"]) > 0
    expected, file = net(SMALL), io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other, _ = nl.fold(randomize(deepcopy(model)), SMALL)
    assert not torch.allclose(other(SMALL), expected)
    other.load_state_dict(torch.load(file))
    for one in (other, deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(one(SMALL), expected)
    compiled: Any = torch.compile(net, backend="aot_eager")
    close(compiled(SMALL), expected)
    close(torch.export.export(net, (SMALL,)).module()(SMALL), expected)
    scales = {path: one.scale.clone() for path, one in net.named_modules() if isinstance(one, FrozenAffine)}
    optimizer, losses = torch.optim.SGD(net.train().parameters(), lr=1e-3), []
    for _ in range(5):
        loss = nn.functional.cross_entropy(net(SMALL[:1]), torch.tensor([3]))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        assert all(parameter.grad is not None for parameter in net.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(torch.equal(net.get_submodule(path).scale, scale) for path, scale in scales.items())


def test_half_precision_weights_are_folded_in_full_precision() -> None:
    half = randomize(wide_resnet(16, 1)).eval().bfloat16()
    new, report = nl.fold(half, SMALL.bfloat16())
    reference, _ = nl.fold(deepcopy(half).double(), SMALL.double())
    for name in {layer for norm in report.norms for layer in norm.layers}:
        exact = reference.get_parameter(f"{name}.weight").bfloat16()
        assert torch.equal(new.get_parameter(f"{name}.weight"), exact)
