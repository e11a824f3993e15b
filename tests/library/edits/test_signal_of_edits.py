"""PredictedVariance, of nf_resnet, and tailored rectifiers: the signal is the one that the papers' recursions say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import cos, pi, sin, sqrt
from typing import Any

import pytest
import torch
from edit_helpers import close, edited
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.edits import PredictedVariance, RemoveNorms, StandardizeWeights, TailorActivations
from normless.edits.tailored import after_rectifier
from normless.models import resnet_v2, wide_resnet
from normless.nn.activation import ScaledActivation
from normless.nn.initialization import INITIALIZATIONS

FREE = "nf_resnet(multiplier=False)"
EDITS = (RemoveNorms(), StandardizeWeights(), PredictedVariance())
RELU = sqrt(2 / (1 - 1 / pi))


@pytest.mark.parametrize(
    ("depth", "scheme", "stages"),
    [
        (28, FREE, [[1.0, *(sqrt(1 + 0.04 * k) for k in range(1, 5))], [sqrt(1 + 0.04 * k) for k in range(1, 5)]]),
        (16, "nf_resnet(alpha=0.5, multiplier=False)", [[1.0, sqrt(1.25), sqrt(1.5)], [sqrt(1.25), sqrt(1.5)]]),
    ],
)
def test_the_recursion_of_a_pre_activation_network(depth: int, scheme: str, stages: list[list[float]]) -> None:
    """1 behind the stem, + α² a block, 1 + α² behind a projecting one, as the plan says of every block."""
    changes = [change.what for change in nl.plan(wide_resnet(depth, 1), scheme)]
    found = [float(what.partition("f(x / ")[2].rstrip(")")) for what in changes if "f(x / " in what]
    expected = [*stages[0], *stages[1], *stages[1]]
    assert found == pytest.approx(expected[: len(found)], rel=1e-3)
    assert len(found) == 3 * (depth - 4) // 6


def test_a_block_is_the_papers_formula() -> None:
    """x + α·f(x/β) with γ at every activation, in a network with biases; the projecting block reads x/β on both."""
    net = edited(wide_resnet(16, 1), *EDITS).double()

    def standardized(conv: nn.Conv2d, x: Tensor) -> Tensor:
        w = conv.weight
        mean, var = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), correction=0, keepdim=True)
        return F.conv2d(x, (w - mean) / (var * w[0].numel()).sqrt(), stride=conv.stride, padding=conv.padding)

    for index, beta in ((1, sqrt(1.04)), (2, sqrt(1.08)), (3, sqrt(1.04))):
        block = net.blocks[index]
        x = torch.randn(2, block.conv1.in_channels, 8, 8, dtype=torch.float64)
        h = RELU * F.relu(x / beta)
        skip = standardized(block.shortcut, h) if block.projects else x
        branch = standardized(block.conv2, RELU * F.relu(standardized(block.conv1, h)))
        close(block(x), skip + 0.2 * branch, rtol=1e-9, atol=1e-9)


class Plain(nn.Module):
    """Linear layers and functions, without skip paths."""

    def __init__(self, depth: int, width: int = 64) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(nn.Linear(width, width) for _ in range(depth)), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Any:
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
    (slope,) = {float(module.get_submodule("activation").negative_slope) for module in tailored(net)}  # type: ignore[arg-type]
    assert {module.scale for module in tailored(net)} == {sqrt(2 / (1 + slope**2))}
    return slope


def correlation(depth: int, slope: float) -> float:
    """Of two inputs that were uncorrelated."""
    c = 0.0
    for _ in range(depth):
        c = after_rectifier(c, slope)
    return c


def test_for_a_relu_it_is_the_arc_cosine_kernel_of_degree_one() -> None:
    for angle in (0.0, 0.3, 1.0, pi / 2, 2.5, pi):
        kernel = (sin(angle) + (pi - angle) * cos(angle)) / pi
        assert after_rectifier(cos(angle), 0.0) == pytest.approx(kernel, abs=1e-9)


NETWORKS: list[tuple[Callable[[int], nn.Module], tuple[int, ...]]] = [(Plain, (2, 64)), (vgg, (2, 3, 4, 4))]


@pytest.mark.parametrize(("depth", "eta"), [(3, 0.3), (10, 0.8), (40, 0.9)])
def test_the_slope_takes_uncorrelated_inputs_to_eta(depth: int, eta: float) -> None:
    for build, shape in NETWORKS:
        slope = slope_of(edited(build(depth), TailorActivations(eta), inputs=(torch.randn(shape),)))
        assert correlation(depth, slope) == pytest.approx(eta, abs=1e-9)
        assert 0 < slope < 1


def test_the_slope_of_the_authors_code_for_a_pre_activation_resnet_101() -> None:
    """dks, test_activation_transform.py: η = 0.75, shortcut weight 0.6, blocks (3, 4, 23, 3)."""
    with torch.device("meta"):
        model = resnet_v2(101)
    net = edited(model, TailorActivations(0.75, 0.6))
    assert slope_of(net) == pytest.approx(0.6291800290346146, abs=1e-9)
    assert next(tailored(net)).scale == pytest.approx(1.196996549778802, abs=1e-9)
    # Blocks add with squares that sum to one.
    skip, branch = torch.randn(2, 4, 3, 8, 8)
    for block in edited(wide_resnet(10, 1), TailorActivations(0.9, 0.8)).blocks:
        close(block.sum(skip, branch), 0.8 * skip + 0.6 * branch)


def alike(h: Tensor) -> float:
    """The mean cosine of different rows."""
    cosines = F.cosine_similarity(h[:, None], h[None], dim=2)
    return cosines[~torch.eye(len(h), dtype=torch.bool)].mean().item()


@pytest.mark.slow
def test_wide_networks_without_skip_paths_keep_the_scale_and_reach_eta() -> None:
    """With ReLU and the same weights all inputs look alike after as many layers."""
    torch.manual_seed(0)
    x = torch.linalg.qr(torch.randn(512, 8))[0].T * sqrt(512)
    net: Any = nl.convert(Plain(30, 512), "tailored_activations", x)
    h, plain, slope = x, x, slope_of(net)
    for layer in net.layers:
        h = sqrt(2 / (1 + slope**2)) * F.leaky_relu(F.linear(h, layer.weight), slope)
        plain = F.relu(F.linear(plain, layer.weight)) * sqrt(2)
    close(net(x), F.linear(h, net.head.weight), rtol=1e-3, atol=1e-3)
    assert h.square().mean(1).sqrt().numpy(force=True) == pytest.approx([1.0] * 8, abs=0.2)
    assert alike(h) == pytest.approx(0.9, abs=0.03)
    assert alike(plain) > 0.965


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 4, 3), (12, 4, 5, 1), (6, 1, 3, 3)])
def test_delta_weights_are_orthogonal_at_the_centre_and_keep_the_mean_square(shape: tuple[int, ...]) -> None:
    weight = torch.randn(shape)
    weight = weight.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else weight
    INITIALIZATIONS["delta"](weight)
    centre = weight[(slice(None), slice(None), *((size - 1) // 2 for size in shape[2:]))]  # type: ignore[index]
    assert weight.square().sum().item() == pytest.approx(centre.square().sum().item())
    outputs, inputs = centre.shape
    short = centre @ centre.T if outputs <= inputs else centre.T @ centre
    close(short, max(1.0, outputs / inputs) * torch.eye(min(outputs, inputs)))
    assert centre.square().mean().item() == pytest.approx(1 / inputs)
