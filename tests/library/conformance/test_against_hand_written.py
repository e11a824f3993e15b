"""Converted networks against the networks a researcher writes by hand from the papers, scalars elementwise."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import resnet_cifar, wide_resnet


def scalar(value: float = 0.0) -> nn.Parameter:
    return nn.Parameter(torch.tensor([value]))


def conv3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class FixupBasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.missing = stride, outputs - inputs
        self.bias1a, self.bias1b, self.bias2a, self.bias2b = scalar(), scalar(), scalar(), scalar()
        self.conv1 = conv3(inputs, outputs, stride)
        self.conv2 = conv3(outputs, outputs)
        self.scale = scalar(1.0)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(x + self.bias1a)
        out = F.relu(out + self.bias1b)
        out = self.conv2(out + self.bias2a)
        out = out * self.scale + self.bias2b
        if self.stride != 1:
            zeros = x.new_zeros(x.shape[0], self.missing // 2, out.shape[2], out.shape[3])
            x = torch.cat([zeros, x[:, :, ::2, ::2], zeros], dim=1)
        return F.relu(out + x)


class FixupResNet(nn.Module):
    """Fixup ResNet-V1 for CIFAR (Zhang et al., figure 1 right and appendix)."""

    def __init__(self, blocks: int, in_channels: int) -> None:
        super().__init__()
        self.conv1, self.bias1 = conv3(in_channels, 16), scalar()
        widths = [16] * blocks + [32] * blocks + [64] * blocks
        self.blocks = nn.ModuleList(
            FixupBasicBlock(before, after, 1 if before == after else 2)
            for before, after in zip([16, *widths], widths, strict=False)
        )
        self.bias2, self.fc = scalar(), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.conv1(x) + self.bias1)
        for block in self.blocks:
            out = block(out)
        return self.fc(out.mean(dim=(2, 3)) + self.bias2)


class SkipInitWideBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv3(inputs, outputs, stride), conv3(outputs, outputs)
        self.alpha = scalar()
        projects = inputs != outputs or stride != 1
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False) if projects else None

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(x)
        skip = x if self.shortcut is None else self.shortcut(out)
        return skip + self.alpha * self.conv2(F.relu(self.conv1(out)))


class FixupWideBlock(SkipInitWideBlock):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, stride)
        self.bias1a, self.bias1b, self.bias2a, self.bias2b = scalar(), scalar(), scalar(), scalar()

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(x + self.bias1a) + self.bias1b
        skip = x if self.shortcut is None else self.shortcut(out)
        out = F.relu(self.conv1(out) + self.bias2a) + self.bias2b
        return skip + self.conv2(out) * self.alpha


class ZeroInitWideBlock(SkipInitWideBlock):
    """SkipInit with a bias per channel on every convolution, the multiplier behind the last one's bias."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, stride)
        for layer in (self.conv1, self.conv2, self.shortcut):
            if layer is not None:
                layer.bias = nn.Parameter(torch.zeros(outputs))


class WideResNet(nn.Module):
    def __init__(self, kind: type[nn.Module], blocks: int, width: int, in_channels: int) -> None:
        super().__init__()
        widths = [16 * width] * blocks + [32 * width] * blocks + [64 * width] * blocks
        strides = ([1] + [1] * (blocks - 1)) + ([2] + [1] * (blocks - 1)) * 2
        self.conv = conv3(in_channels, 16)
        if kind is ZeroInitWideBlock:
            self.conv.bias = nn.Parameter(torch.zeros(16))
        self.blocks = nn.ModuleList(
            kind(before, after, stride) for before, after, stride in zip([16, *widths], widths, strides, strict=False)
        )
        self.fixup = kind is FixupWideBlock
        if self.fixup:
            self.bias1, self.bias2 = scalar(), scalar()
        self.fc = nn.Linear(64 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        for block in self.blocks:
            out = block(out)
        out = F.relu(out + self.bias1 if self.fixup else out).mean(dim=(2, 3))
        return self.fc(out + self.bias2 if self.fixup else out)


# The hand-written network's parameter names and the converted network's.
ENDS = {"bias1": "relu.input_bias", "bias2": "classifier.input_bias"}
OUTSIDE = {
    "resnet": {"conv1.weight": "stem.weight", **ENDS},
    "wide": {"conv.weight": "stem.weight", "conv.bias": "stem.bias", **ENDS},
}
INSIDE = {
    "resnet": "bias1a conv1.input_bias bias1b relu1.input_bias bias2a relu1.output_bias bias2b relu2.input_bias "
    "scale conv2.multiplier",
    "wide": "bias1a relu1.input_bias bias1b relu1.output_bias bias2a relu2.input_bias bias2b relu2.output_bias "
    "alpha conv2.multiplier",
}

CASES: dict[str, tuple[str, Callable[[], nn.Module], Callable[[], nn.Module], str, int]] = {
    "fixup resnet 14 gray": (
        "resnet", lambda: FixupResNet(2, 1), lambda: resnet_cifar(14, in_channels=1), "fixup", 1
    ),
    "fixup wide 10-2": (
        "wide", lambda: WideResNet(FixupWideBlock, 1, 2, 3), lambda: wide_resnet(10, 2), "fixup", 3
    ),
    "skipinit wide 16-1 gray": (
        "wide",
        lambda: WideResNet(SkipInitWideBlock, 2, 1, 1),
        lambda: wide_resnet(16, 1, in_channels=1),
        "skipinit(alpha=1)",
        1,
    ),
    "zeroinit wide 16-1": (
        "wide",
        lambda: WideResNet(ZeroInitWideBlock, 2, 1, 3),
        lambda: wide_resnet(16, 1),
        "zeroinit(dropout=0)",
        3,
    ),
}  # fmt: skip


def counterpart(name: str, family: str) -> str:
    """The converted network's name of a hand-written parameter."""
    if name.startswith("fc."):
        return name.replace("fc.", "classifier.")
    inside = re.fullmatch(r"(blocks\.\d+\.)(.+)", name)
    if inside is None:
        return OUTSIDE[family][name]
    names = INSIDE[family].split()
    return inside[1] + dict(zip(names[::2], names[1::2], strict=True)).get(inside[2], inside[2])


def matched(case: str) -> tuple[nn.Module, nn.Module, dict[str, str], Tensor]:
    """Both networks with the same random weights and scalars, the names of one by the other's, and a batch."""
    family, by_hand, build, scheme, channels = CASES[case]
    hand, net = by_hand().double(), nl.convert(build(), scheme).double()
    theirs = dict(net.named_parameters())
    names = {name: counterpart(name, family) for name, _ in hand.named_parameters()}
    assert set(names.values()) == set(theirs)
    with torch.no_grad():
        for name, parameter in hand.named_parameters():
            assert parameter.shape == theirs[names[name]].shape, name
            size = (
                0.5 if parameter.numel() == 1 else 0.1 if parameter.dim() == 1 else 2.0 / parameter[0].numel() ** 0.5
            )
            parameter.copy_(size * torch.randn_like(parameter))
            theirs[names[name]].copy_(parameter)
    return hand, net, names, torch.randn(6, channels, 8, 8, dtype=torch.float64)


def assert_close(actual: Tensor, expected: Tensor, name: str) -> None:
    scale = max(1.0, expected.abs().max().item())
    assert (actual - expected).abs().max().item() <= 1e-10 * scale, name


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_all_gradients(case: str) -> None:
    hand, net, names, x = matched(case)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, actual = hand(one), net(other)
    assert expected.std() > 1e-2
    assert_close(actual, expected, "output")
    labels = torch.arange(6)
    F.cross_entropy(expected, labels).backward()
    F.cross_entropy(actual, labels).backward()
    assert one.grad is not None
    assert other.grad is not None
    assert_close(other.grad, one.grad, "input")
    theirs = dict(net.named_parameters())
    for name, parameter in hand.named_parameters():
        found = theirs[names[name]].grad
        assert parameter.grad is not None, name
        assert found is not None, name
        assert parameter.grad.any(), name
        assert_close(found, parameter.grad, name)


def test_fixup_initialization_is_the_papers() -> None:
    """He normal (fan-out) × L^(-1/2) on the first layer of each branch; zero on the last and the classifier."""
    net = nl.convert(resnet_cifar(20), "fixup")
    for block in net.blocks:
        outputs = block.conv1.weight.shape[0]
        expected = (2 / (9 * outputs)) ** 0.5 * 9**-0.5
        count = block.conv1.weight.numel()
        assert block.conv1.weight.std().item() == pytest.approx(expected, rel=5 / (2 * count) ** 0.5)
        assert not block.conv2.weight.any()
        assert block.conv2.multiplier.item() == 1
    assert not net.classifier.weight.any()
    assert not net.classifier.bias.any()
    assert net.stem.weight.std().item() == pytest.approx((2 / (9 * 16)) ** 0.5, rel=5 / (2 * 432) ** 0.5)
