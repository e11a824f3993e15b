"""What edits set weights and gains to: orthogonal and packed ones, LSUV, standardized weights; all else stays."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import pytest
import torch
from edit_helpers import assert_changes, close, edited, images, randomized
from torch import Tensor, nn

import normless as nl
from normless.edits import (
    LSUV,
    ChannelBiases,
    Edit,
    Reinitialize,
    RemoveNorms,
    StandardizeWeights,
    ZeroBranchEnds,
)
from normless.models import dense, resnet_cifar, wide_resnet
from normless.nn import ResidualSum


@pytest.mark.parametrize("edits", [(Reinitialize("orthogonal"),), (RemoveNorms(), LSUV())])
def test_rows_or_columns_are_orthogonal(edits: tuple[Edit, ...]) -> None:
    """LSUV's are multiples of orthogonal ones."""
    net = edited(wide_resnet(10, 1), *edits, inputs=(images(16),))
    for path in ["stem", "blocks.1.conv1", "blocks.2.shortcut", "classifier"]:
        weight = net.get_submodule(path).weight.detach().flatten(1)
        gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        scale = 1.0 if len(edits) == 1 else gram[0, 0].item()
        close(gram, scale * torch.eye(len(gram)), rtol=0, atol=1e-4 * scale)


def test_only_weights_change_and_layer_biases_become_zero() -> None:
    model = randomized(wide_resnet(10, 1))
    net = edited(model, ChannelBiases(), Reinitialize("he"))
    weights = "~stem.weight ~blocks.*.conv*.weight ~blocks.*.shortcut.weight ~classifier.*"
    assert_changes(model, net, f"{weights} +stem.bias +blocks.*.conv*.bias +blocks.*.shortcut.bias")
    assert not any(
        value.any() for name, value in net.named_parameters() if name.endswith("bias") and "norm" not in name
    )
    biased = edited(wide_resnet(10, 1), ChannelBiases())
    nn.init.ones_(biased.blocks[1].conv2.bias)
    del biased.normless_scheme
    assert not edited(biased, ZeroBranchEnds()).blocks[1].conv2.bias.any()
    assert biased.blocks[1].conv2.bias.all()


def test_packed_projections_are_drawn_each_by_its_own_shape() -> None:
    layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True)
    nn.init.ones_(layer.self_attn.in_proj_bias)
    net: Any = nl.convert(layer, "xavier", torch.randn(2, 5, 64))
    for part in net.self_attn.in_proj_weight.chunk(3):
        assert part.var().item() == pytest.approx(1 / 64, rel=0.06)
    assert not net.self_attn.in_proj_bias.any()
    assert not net.self_attn.out_proj.bias.any()


class Backwards(nn.Module):
    """A residual network whose modules are registered in the reverse of the order in which they run."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier, self.block = nn.Linear(20, 5), nn.Module()
        self.block.second, self.block.relu, self.block.first = nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 30)
        self.block.sum = ResidualSum()
        self.norm, self.stem, self.drop = nn.BatchNorm1d(20), nn.Linear(8, 20), nn.Dropout(0.9)

    def forward(self, x: Tensor) -> Any:
        h, block = self.drop(self.norm(self.stem(x))), self.block
        return self.classifier(block.sum(h, block.second(block.relu(block.first(h)))))  # type: ignore[operator]

    def example_inputs(self) -> Tensor:
        return torch.ones(4, 8)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], float]] = {
    "wide": (lambda: wide_resnet(16, 1), lambda: images(16) * 3 + 1, 0.02),
    "cifar": (lambda: resnet_cifar(14), lambda: images(16), 1e-4),
    "dense": (lambda: dense(12, 30, in_features=10), lambda: torch.randn(64, 10), 0.02),
    "backwards": (Backwards, lambda: 5 * torch.randn(64, 8), 1e-4),
}


@pytest.mark.parametrize("case", CASES)
def test_every_output_has_unit_variance_on_the_batch(case: str) -> None:
    """In evaluation mode, over everything."""
    build, batch, tolerance = CASES[case]
    x, variances = batch(), dict[str, float]()
    net = edited(build(), RemoveNorms(), LSUV(tolerance), inputs=(x,))
    for path, module in net.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            assert not module._forward_hooks
            module.register_forward_hook(
                lambda _, __, y, path=path: variances.update({path: y.var(correction=0).item()})
            )
    net.eval()(x)
    assert variances
    assert all(abs(variance - 1) <= tolerance + 1e-5 for variance in variances.values()), variances


RELU = sqrt(2 / (1 - 1 / pi))


def test_convolutions_are_standardized_with_the_gains_of_the_activations_that_they_read() -> None:
    model = wide_resnet(10, 1)
    kept = edited(model, StandardizeWeights())
    layers = ("stem", "blocks.*.conv?", "blocks.[12].shortcut")
    assert_changes(model, kept, " ".join(f"+{path}.gain {path}=ScaledStdConv2d" for path in layers))
    net = edited(model, RemoveNorms(), StandardizeWeights())
    assert net.stem.scale == 1
    for block in net.blocks:
        assert [block.conv1.scale, block.conv2.scale] == pytest.approx([RELU, RELU], rel=1e-12)
    # Shared with the branch, the first ReLU feeds the skip path's convolution as well.
    assert [net.blocks[1].shortcut.scale, net.blocks[2].shortcut.scale] == pytest.approx([RELU, RELU], rel=1e-12)
    # An activation on the stream gives no gain.
    cifar = edited(resnet_cifar(8), RemoveNorms(), StandardizeWeights())
    assert [block.conv1.scale for block in cifar.blocks] == [1, 1, 1]
    assert [block.conv2.scale for block in cifar.blocks] == pytest.approx([RELU] * 3, rel=1e-12)
