"""Converted networks against forward passes that a researcher writes by hand from the papers, scalars elementwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl
from normless.models import resnet_cifar, wide_resnet

Weights = dict[str, Tensor]
ZERO = torch.zeros(1, dtype=torch.float64)


def convolved(w: Weights, name: str, x: Tensor, stride: int = 1) -> Tensor:
    weight = w[f"{name}.weight"]
    return F.conv2d(x, weight, w.get(f"{name}.bias"), stride, padding=weight.shape[-1] // 2)


def blocks_of(w: Weights) -> list[Weights]:
    """The parameters of each block, by their names inside it."""
    blocks: dict[int, Weights] = {}
    for name, one in w.items():
        if name.startswith("blocks."):
            _, at, own = name.split(".", 2)
            blocks.setdefault(int(at), {})[own] = one
    return [blocks[at] for at in sorted(blocks)]


def classified(w: Weights, x: Tensor) -> Tensor:
    features = x.mean((2, 3)) + w.get("classifier.input_bias", ZERO)
    return F.linear(features, w["classifier.weight"], w["classifier.bias"])


def fixup_resnet(w: Weights, x: Tensor) -> Tensor:
    """Fixup ResNet-V1 for CIFAR (Zhang et al., figure 1 right and appendix)."""
    x = F.relu(convolved(w, "stem", x) + w["relu.input_bias"])
    for b in blocks_of(w):
        missing = len(b["conv1.weight"]) - x.shape[1]
        stride = 2 if missing else 1
        out = F.relu(convolved(b, "conv1", x + b["conv1.input_bias"], stride) + b["relu1.input_bias"])
        out = convolved(b, "conv2", out + b["relu1.output_bias"]) * b["conv2.multiplier"] + b["relu2.input_bias"]
        if missing:
            zeros = x.new_zeros(len(x), missing // 2, *out.shape[2:])
            x = torch.cat([zeros, x[:, :, ::2, ::2], zeros], dim=1)
        x = F.relu(out + x)
    return classified(w, x)


def wide(w: Weights, x: Tensor) -> Tensor:
    """A wide ResNet by SkipInit, by Fixup with scalar biases, by ZeroInit with a bias per channel of convolutions."""
    blocks, x = blocks_of(w), convolved(w, "stem", x)
    for at, b in enumerate(blocks):
        stride = 2 if at in (len(blocks) // 3, 2 * len(blocks) // 3) else 1
        before, after = (
            [b.get(f"relu{place}.{side}_bias", ZERO) for place in (1, 2)] for side in ("input", "output")
        )
        out = F.relu(x + before[0]) + after[0]
        skip = convolved(b, "shortcut", out, stride) if "shortcut.weight" in b else x
        out = F.relu(convolved(b, "conv1", out, stride) + before[1]) + after[1]
        x = skip + convolved(b, "conv2", out) * b["conv2.multiplier"]
    return classified(w, F.relu(x + w.get("relu.input_bias", ZERO)))


# The forward pass by hand, the network, the scheme, its input channels, and how many parameters have which last name
# beside the weights.
CASES: dict[str, tuple[Callable[[Weights, Tensor], Tensor], Callable[[], nn.Module], str, int, dict[str, int]]] = {
    "fixup resnet 14 gray": (
        fixup_resnet, lambda: resnet_cifar(14, in_channels=1), "fixup", 1,
        {"multiplier": 6, "input_bias": 3 * 6 + 2, "output_bias": 6, "bias": 1},
    ),
    "fixup wide 10-2": (
        wide, lambda: wide_resnet(10, 2), "fixup", 3,
        {"multiplier": 3, "input_bias": 2 * 3 + 2, "output_bias": 2 * 3, "bias": 1},
    ),
    "skipinit wide 16-1 gray": (
        wide, lambda: wide_resnet(16, 1, in_channels=1), "skipinit(alpha=1)", 1, {"multiplier": 6, "bias": 1},
    ),
    "zeroinit wide 16-1": (
        wide, lambda: wide_resnet(16, 1), "zeroinit(dropout=0)", 3, {"multiplier": 6, "bias": 1 + 2 * 6 + 2 + 1},
    ),
}  # fmt: skip


def assert_close(actual: Tensor, expected: Tensor, name: str) -> None:
    scale = max(1.0, expected.abs().max().item())
    assert (actual - expected).abs().max().item() <= 1e-10 * scale, name


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_all_gradients(case: str) -> None:
    """Every parameter is read by the pass by hand, and its gradient is that of autograd through it."""
    by_hand, build, scheme, channels, counts = CASES[case]
    net, x = nl.convert(build(), scheme).double(), torch.randn(6, channels, 8, 8, dtype=torch.float64)
    w: Weights = dict(net.named_parameters())
    last = Counter(name.rpartition(".")[2] for name in w)
    assert {name: count for name, count in last.items() if name != "weight"} == counts
    with torch.no_grad():
        for one in w.values():
            size = 0.5 if one.numel() == 1 else 0.1 if one.dim() == 1 else 2.0 / one[0].numel() ** 0.5
            one.copy_(size * torch.randn_like(one))
    outputs = by_hand(w, x.requires_grad_()), net(x)
    assert outputs[0].std() > 1e-2
    assert_close(outputs[1], outputs[0], "output")
    wanted, found = (torch.autograd.grad(F.cross_entropy(y, torch.arange(6)), [x, *w.values()]) for y in outputs)
    for name, one, other in zip(["input", *w], found, wanted, strict=True):
        assert other.any(), name
        assert_close(one, other, name)


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
