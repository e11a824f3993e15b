"""Tailored rectifiers: the correlation map in closed form, slopes of the authors' code, networks that keep η."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import cos, pi, sin, sqrt

import pytest
import timm
import torch
import torchvision
from edit_helpers import edited
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written, linear_layers

import normless as nl
from normless.edits import TailorActivations
from normless.edits.tailored import after_rectifier
from normless.models import resnet_cifar, resnet_v2, wide_resnet
from normless.nn.activation import ScaledActivation
from normless.nn.initialization import INITIALIZATIONS


class Plain(nn.Module):
    """Linear layers and functions, without skip paths."""

    def __init__(self, depth: int, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)


def vgg(depth: int, channels: int = 16) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in range(depth):
        conv = nn.Conv2d(channels if index else 3, channels, 3, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def tailored(net: nn.Module) -> Iterator[ScaledActivation]:
    return (module for module in net.modules() if isinstance(module, ScaledActivation))


def slope_of(net: nn.Module) -> float:
    slopes = {module.activation.negative_slope for module in tailored(net)}
    assert len(slopes) == 1
    (slope,) = slopes
    assert {module.scale for module in tailored(net)} == {sqrt(2 / (1 + slope**2))}
    return float(slope)


@pytest.mark.parametrize(("slope", "c"), [(0.0, -0.5), (0.3, 0.4), (0.9, 0.0), (0.3, 0.95)])
def test_the_map_is_the_correlation_of_outputs_for_normal_inputs(slope: float, c: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, z = torch.randn(2, 1_000_000, generator=generator, dtype=torch.float64)
    activation = ScaledActivation(nn.LeakyReLU(slope), sqrt(2 / (1 + slope**2)))
    one, other = activation(x), activation(c * x + sqrt(1 - c**2) * z)
    assert one.square().mean().item() == pytest.approx(1, rel=0.01)
    assert (one * other).mean().item() == pytest.approx(after_rectifier(c, slope), abs=0.01)


def test_for_a_relu_it_is_the_arc_cosine_kernel_of_degree_one() -> None:
    for angle in (0.0, 0.3, 1.0, pi / 2, 2.5, pi):
        kernel = (sin(angle) + (pi - angle) * cos(angle)) / pi
        assert after_rectifier(cos(angle), 0.0) == pytest.approx(kernel, abs=1e-9)


@pytest.mark.parametrize(("depth", "eta"), [(3, 0.3), (10, 0.8), (40, 0.9)])
def test_the_slope_takes_uncorrelated_inputs_to_eta(depth: int, eta: float) -> None:
    for build, x in ((lambda: Plain(depth), torch.randn(2, 64)), (lambda: vgg(depth), torch.randn(2, 3, 4, 4))):
        slope = slope_of(edited(build(), TailorActivations(eta), inputs=(x,)))
        c = 0.0
        for _ in range(depth):
            c = after_rectifier(c, slope)
        assert c == pytest.approx(eta, abs=1e-9)
        assert 0 < slope < 1


def test_the_slope_of_the_authors_code_for_a_pre_activation_resnet_101() -> None:
    """dks, test_activation_transform.py: η = 0.75, shortcut weight 0.6, blocks (3, 4, 23, 3)."""
    with torch.device("meta"):
        model = resnet_v2(101)
    net = edited(model, TailorActivations(0.75, 0.6))
    assert slope_of(net) == pytest.approx(0.6291800290346146, abs=1e-9)
    assert next(tailored(net)).scale == pytest.approx(1.196996549778802, abs=1e-9)


def test_blocks_add_with_squares_that_sum_to_one() -> None:
    net = edited(wide_resnet(10, 1), TailorActivations(0.9, 0.8))
    for block in net.blocks:
        skip, branch = torch.randn(2, 4, 3, 8, 8)
        torch.testing.assert_close(block.sum(skip, branch), 0.8 * skip + 0.6 * branch)


def test_wide_networks_without_skip_paths_keep_the_scale_and_reach_eta() -> None:
    """With ReLU and the same weights all inputs look alike after as many layers."""
    torch.manual_seed(0)
    x = torch.linalg.qr(torch.randn(1024, 8))[0].T * sqrt(1024)
    model = Plain(30, 1024)
    net = nl.convert(model, "tailored_activations", x)
    h = x
    for layer in net.layers:
        y = F.linear(h, layer.weight)
        h = sqrt(2 / (1 + slope_of(net) ** 2)) * F.leaky_relu(y, slope_of(net))
    torch.testing.assert_close(net(x), F.linear(h, net.head.weight), rtol=1e-3, atol=1e-3)
    assert h.square().mean(1).sqrt().numpy(force=True) == pytest.approx([1.0] * 8, abs=0.2)
    between = F.cosine_similarity(h[:, None], h[None], dim=2)[~torch.eye(8, dtype=torch.bool)]
    assert between.mean().item() == pytest.approx(0.9, abs=0.03)
    plain = x
    for layer in net.layers:
        plain = F.relu(F.linear(plain, layer.weight)) * sqrt(2)
    alike = F.cosine_similarity(plain[:, None], plain[None], dim=2)[~torch.eye(8, dtype=torch.bool)]
    assert alike.mean().item() > 0.965


def test_a_deep_convolutional_network_without_norms_keeps_its_scale_at_borders_too() -> None:
    torch.manual_seed(0)
    model, x = vgg(30, 64), torch.randn(16, 3, 4, 4)
    net = nl.convert(model, "tailored_activations", x)
    assert not [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    power = net[:90](x).square().mean((0, 1))
    assert power.mean().item() == pytest.approx(1, abs=0.7)
    assert power[0].mean().item() / power[1:3, 1:3].mean().item() == pytest.approx(1, abs=0.3)
    assert all(layer.bias is not None and not layer.bias.any() for layer in net if isinstance(layer, nn.Conv2d))
    F.cross_entropy(net(x), torch.arange(16) % 10).backward()
    norms = [p.grad.norm().item() for name, p in net.named_parameters() if name.endswith("weight")]
    assert max(norms) < 20 * min(norms)


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 4, 3), (12, 4, 5, 1), (6, 1, 3, 3)])
def test_delta_weights_are_orthogonal_at_the_centre_and_keep_the_mean_square(shape: tuple[int, ...]) -> None:
    weight = (
        torch.randn(shape).contiguous(memory_format=torch.channels_last) if len(shape) == 4 else torch.randn(shape)
    )
    INITIALIZATIONS["delta"](weight)
    centre = weight[(slice(None), slice(None), *((size - 1) // 2 for size in shape[2:]))]
    assert weight.square().sum().item() == pytest.approx(centre.square().sum().item())
    outputs, inputs = centre.shape
    short = centre @ centre.T if outputs <= inputs else centre.T @ centre
    torch.testing.assert_close(short, max(1.0, outputs / inputs) * torch.eye(min(outputs, inputs)))
    assert centre.square().mean().item() == pytest.approx(1 / inputs)


def test_predictions_follow_the_tailored_activations() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 3, 8, 8)
    net = nl.convert(wide_resnet(28, 4), "tailored_activations(eta=0.5, skip=0.8)", x)
    table = nl.probe(net, x, ["signal"]).signal
    ratio = table["sum_second_moment"] / table["predicted_sum_second_moment"]
    assert ratio.to_numpy() == pytest.approx([1.0] * 12, abs=0.2)


def written(forward: Callable[[Written, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Written(forward, **linear_layers("f g h", 64))


class Fused(nn.Sequential):
    """With timm's layer that normalizes and rectifies."""

    def __init__(self) -> None:
        norm = timm.layers.BatchNormAct2d(8)
        super().__init__(nn.Conv2d(3, 8, 3), norm, nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 2))


REFUSALS = [
    (TailorActivations(), lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)), (2, 64), "slope"),
    (TailorActivations(), written(lambda m, x: m.h(F.relu(m.f(x)) * m.g(x).sigmoid())), (2, 64), "after its gate"),
    (TailorActivations(), written(lambda m, x: x + F.relu(m.f(x)) + F.relu(m.g(x))), (2, 64), "several branches"),
    (TailorActivations(), Fused, (2, 3, 8, 8), "an activation was part of this normalization"),
    (TailorActivations(), lambda: resnet_cifar(8), (2, 3, 8, 8), "reads more than outputs of weight layers"),
    (TailorActivations(eta=1.0), lambda: Plain(2), (2, 64), "got 1.0 and 0.7"),
    (TailorActivations(skip=0.0), lambda: Plain(2), (2, 64), "got 0.9 and 0.0"),
]


@pytest.mark.parametrize(("edit", "build", "shape", "sentence"), REFUSALS)
def test_refusals(
    edit: TailorActivations, build: Callable[[], nn.Module], shape: tuple[int, ...], sentence: str
) -> None:
    with pytest.raises(nl.UnsupportedEditError, match=sentence):
        edited(build(), edit, inputs=(torch.randn(shape),))


@pytest.mark.slow
def test_a_network_of_torchvision_with_concatenations() -> None:
    model, x = torchvision.models.squeezenet1_1(num_classes=4), torch.randn(2, 3, 64, 64)
    net = nl.convert(model, "tailored_activations", x)
    # 16 fire layers in series as each expands by two in parallel, the first convolution, the classifier's.
    c = 0.0
    for _ in range(18):
        c = after_rectifier(c, slope_of(net))
    assert c == pytest.approx(0.9, abs=1e-9)
