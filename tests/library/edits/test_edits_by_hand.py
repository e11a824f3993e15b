"""Edits alone: what a block or the classifier computes afterwards, written by hand, and what changed in the state."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest
import torch
from edit_helpers import assert_changes, close, edited, images, randomized
from torch import Tensor, nn
from torch.nn import functional as F

from normless.edits import (
    BiasAfterSum,
    BranchMultiplier,
    ChannelBiases,
    Edit,
    HeadDropout,
    LayerScale,
    NormOnSkip,
    OnlyFinalNorm,
    OnlyTopNorm,
    RemoveBranches,
    RemoveNorms,
    RescaleBranches,
    ScalarBiases,
    ScaleBranches,
    ScaleSums,
    ZeroBranchEnds,
    ZeroClassifier,
    ZeroLastGamma,
)
from normless.models import dense, resnet_cifar, wide_resnet

NETWORKS: dict[str, Callable[[], Any]] = {
    "wide": lambda: wide_resnet(10, 1),
    "cifar": lambda: resnet_cifar(8),
    "dense": lambda: dense(3, 8, in_features=4),
}
CONV, NORMS = "blocks.*.conv2", "-blocks.*.norm* -norm.* blocks.*.norm*=Identity norm=Identity"


def f(b: Any, x: Tensor) -> Any:
    """The branch of a pre-activation block."""
    return b.conv2(torch.relu(b.norm2(b.conv1(torch.relu(b.norm1(x))))))


def bare(b: Any, x: Tensor) -> Any:
    """The branch without its norms."""
    return b.conv2(torch.relu(b.conv1(torch.relu(x))))


def normalized(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


def shifted(b: Any, n: Any, x: Tensor) -> Tensor:
    """Fixup's biases beside norms: a bias before an activation behind a norm cannot ride in a convolution."""
    h = torch.relu(b.norm1(b.conv1(x + n.conv1.input_bias)) + n.relu1.input_bias) + n.relu1.output_bias
    return torch.relu(x + b.norm2(b.conv2(h)) + n.relu2.input_bias)


def scaled_and_shifted(b: Any, n: Any, x: Tensor) -> Tensor:
    return torch.relu((x + b.conv2(torch.relu(b.conv1(x)))) / 2 + n.relu2.input_bias)


def biased(b: Any, n: Any, x: Tensor) -> Any:
    first, second = n.conv1.bias[:, None, None], n.conv2.bias[:, None, None]
    return x + b.conv2(torch.relu(b.norm2(b.conv1(torch.relu(b.norm1(x))) + first))) + second


By = Callable[[Any, Any, Tensor], Any]
BLOCK, HEAD, FINAL = "blocks.0", "classifier", f"{NORMS} classifier=ScalarLinear +classifier.before.*"
BIASES = "+relu.*_bias +blocks.*_bias +classifier.input_bias"
SHIFTED = "blocks.*.conv1=ScalarConv2d *relu*=ShiftedActivation classifier=ScalarLinear"
# Network, edits, changes of the state, the part that is compared, and what it computes by the old and the new part.
EDITED: list[tuple[str, tuple[Edit, ...], str, str, By]] = [
    ("wide", (BranchMultiplier(0.3),), f"+{CONV}.multiplier {CONV}=ScalarConv2d",
     BLOCK, lambda b, n, x: x + n.conv2.multiplier * f(b, x)),
    ("wide", (LayerScale(0.01),), f"+{CONV}.layer_scale {CONV}=ScalarConv2d",
     BLOCK, lambda b, n, x: x + n.conv2.layer_scale[:, None, None] * f(b, x)),
    ("wide", (ScaleSums(0.5), ScaleSums(0.5)), "", BLOCK, lambda b, n, x: (x + f(b, x)) / 4),
    ("wide", (ScaleBranches(),), "", BLOCK, lambda b, n, x: x + f(b, x) / sqrt(3)),
    ("wide", (RemoveNorms(),), NORMS, BLOCK, lambda b, n, x: x + bare(b, x)),
    ("wide", (NormOnSkip(),), "+blocks.*.sum.norm_total.*", BLOCK, lambda b, n, x: normalized(x + f(b, x))),
    ("wide", (NormOnSkip("skip_path"),), "+blocks.*.sum.norm_skip.*", BLOCK, lambda b, n, x: normalized(x) + f(b, x)),
    ("wide", (ZeroBranchEnds(),), f"~{CONV}.weight", BLOCK, lambda b, n, x: x),
    ("wide", (ChannelBiases(),), "+stem.bias +blocks.*.conv*.bias +blocks.*.shortcut.bias", BLOCK, biased),
    ("wide", (HeadDropout(0.0),), "classifier=ScalarLinear", HEAD, lambda b, n, x: b(x)),
    ("wide", (OnlyFinalNorm(), HeadDropout(0.0)), FINAL, HEAD, lambda b, n, x: b(normalized(x))),
    ("cifar", (OnlyFinalNorm(),), FINAL, HEAD, lambda b, n, x: b(normalized(x))),
    ("cifar", (ScalarBiases(),), f"{BIASES} {SHIFTED}", BLOCK, shifted),
    ("cifar", (RemoveNorms(), ScaleSums(0.5), BiasAfterSum()),
     f"{NORMS} +blocks.*.relu2.input_bias blocks.*.relu2=ShiftedActivation", BLOCK, scaled_and_shifted),
    ("cifar", (ZeroLastGamma(),), "~blocks.*.norm2.weight",
     BLOCK, lambda b, n, x: torch.relu(x + b.norm2.bias[:, None, None])),
    ("dense", (ZeroClassifier(),), "~classifier.*", HEAD, lambda b, n, x: torch.zeros(len(x), 10)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "edits", "changes", "place", "by_hand"), EDITED, ids=["-".join(map(repr, row[1])) for row in EDITED]
)
def test_an_edit_computes_what_is_written(
    name: str, edits: tuple[Edit, ...], changes: str, place: str, by_hand: By
) -> None:
    model = randomized(NETWORKS[name]())
    net = edited(model, *edits)
    assert_changes(model, net, changes)
    old, new = model.get_submodule(place), net.get_submodule(place)
    for key, value in new.named_parameters():
        if key not in old.state_dict() and "norm" not in key and "before" not in key:
            nn.init.uniform_(value, 0.1, 1)
    x = torch.randn(9, old.in_features) if place == "classifier" else torch.randn(4, 16, 8, 8)
    close(new(x), by_hand(old, new, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layers", "depth", "gain", "factor"),
    [(2, 16, 1.0, 1 / 4), (3, 16, 1.0, 1 / 2), (4, 8, 10.0, 10 * 2**-0.5), (2, 1, 1.0, 1.0)],
)
def test_branch_weights_are_scaled_by_depth_and_gain(layers: int, depth: int, gain: float, factor: float) -> None:
    """L^(-1/(2m-2)) times the gain, in numbers."""
    model: Any = dense(depth, 6, in_features=4, branch_layers=layers)
    net = edited(model, RescaleBranches(gain))
    assert_changes(model, net, "~blocks.*.branch.linear*.weight" if factor != 1 else "")
    for block in range(depth):
        close(net.blocks[block].branch.linear1.weight, model.blocks[block].branch.linear1.weight * factor)


def test_removed_branches_leave_the_skip_path_and_the_norm_at_the_top_follows_the_last_relu() -> None:
    model, x = randomized(wide_resnet(16, 1)).eval(), images()
    net = edited(model, RemoveNorms(), RemoveBranches())
    h = model.stem(x)
    for block in model.blocks:
        h = block.shortcut(torch.relu(h)) if block.projects else h
    close(net(x), model.classifier(torch.relu(h).mean((2, 3))))
    weights = {"stem", "classifier", "blocks.2.shortcut", "blocks.4.shortcut"}
    assert {*net.state_dict()} == {f"{path}.weight" for path in weights} | {"classifier.bias"}
    cifar: Any = resnet_cifar(8)
    top, h = edited(cifar, OnlyTopNorm()), torch.relu(cifar.stem(x))
    for block in cifar.blocks:
        h = (block.shortcut(h) if hasattr(block, "shortcut") else h) + block.conv2(torch.relu(block.conv1(h)))
        h = torch.relu(h)
    close(top(x), cifar.classifier(normalized(h).mean((2, 3))), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("edits", [(HeadDropout(0.6),), (OnlyFinalNorm(), HeadDropout(0.6))])
def test_features_are_dropped_in_training_and_not_in_evaluation(edits: tuple[Edit, ...]) -> None:
    net = edited(resnet_cifar(8), *edits)
    nn.init.constant_(net.classifier.weight, 1 / 64)
    nn.init.zeros_(net.classifier.bias)
    # Features of ones, or after the norm of ±1; those that are kept are divided by 0.4.
    features = torch.ones(2000, 64)
    if len(edits) == 2:
        features[::2] = -1
    y = net.classifier(features)[:, 0]
    assert y.mean().item() == pytest.approx(2 - len(edits), abs=5 * (2.5 / 64 / 2000) ** 0.5)
    assert (y - features[:, 0]).var().item() == pytest.approx(1.5 / 64, rel=0.2)
    close(net.eval().classifier(features)[:, 0], features[:, 0], rtol=0, atol=0.01)
    assert HeadDropout().probability == 0.6
