"""LSUV: unit output variance of every weight layer, in execution order, and nothing else disturbed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from edit_helpers import added, altered, edited, images, randomized, removed, retyped
from torch import Tensor, nn

import normless as nl
from normless.edits import LSUV, RemoveNorms
from normless.models import dense, resnet_cifar, wide_resnet
from normless.nn import ResidualSum
from normless.residual import BlockStructure, Structure


class Backwards(nn.Module):
    """A residual network whose modules are registered in the reverse of the order in which they run."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(20, 5)
        self.block = nn.Module()
        self.block.second = nn.Linear(30, 20)
        self.block.relu = nn.ReLU()
        self.block.first = nn.Linear(20, 30)
        self.block.sum = ResidualSum()
        self.norm = nn.BatchNorm1d(20)
        self.stem = nn.Linear(8, 20)
        self.drop = nn.Dropout(0.9)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.norm(self.stem(x)))
        h = self.block.sum(h, self.block.second(self.block.relu(self.block.first(h))))
        return self.classifier(h)

    def residual_structure(self) -> Structure:
        block = BlockStructure(branch=["first", "relu", "second"])
        return Structure(stem=["stem", "norm", "drop"], blocks=[("block", block)], head=["classifier"])


def output_variances(model: nn.Module, x: Tensor) -> dict[str, float]:
    """The variance of every weight layer's output in evaluation mode, over everything."""
    found: dict[str, float] = {}
    handles = [
        module.register_forward_hook(
            lambda _, inputs, output, name=name: found.update({name: output.var(correction=0).item()})
        )
        for name, module in model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    ]
    with torch.no_grad():
        model.eval()(x)
    for handle in handles:
        handle.remove()
    return found


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "wide": (lambda: wide_resnet(16, 1), lambda: images(16) * 3 + 1),
    "cifar": (lambda: resnet_cifar(14), lambda: images(16)),
    "dense": (lambda: dense(12, 30, in_features=10), lambda: torch.randn(64, 10)),
    "backwards": (Backwards, lambda: 5 * torch.randn(64, 8)),
}


@pytest.mark.parametrize(("case", "tolerance"), [*zip(CASES, [0.02, 1e-4, 0.02, 1e-4], strict=True)])
def test_every_output_has_unit_variance_on_the_batch(case: str, tolerance: float) -> None:
    build, batch = CASES[case]
    x = batch()
    net = edited(build(), RemoveNorms(), LSUV(tolerance), inputs=(x,))
    variances = output_variances(net, x)
    assert variances
    for path, variance in variances.items():
        assert abs(variance - 1) <= tolerance + 1e-5, path


def test_layers_are_recorded_in_execution_order() -> None:
    x = torch.randn(64, 8)
    changes = nl.plan(Backwards(), nl.Scheme("test", (LSUV(),)), x)
    calibrated = [change.path for change in changes if "output variance" in change.what]
    assert calibrated == ["stem", "block.first", "block.second", "classifier"]


def test_weights_stay_multiples_of_orthogonal_ones() -> None:
    net = edited(resnet_cifar(8), RemoveNorms(), LSUV(), inputs=(images(16),))
    for path in ("stem", "blocks.1.conv1", "blocks.2.conv2", "classifier"):
        weight = net.get_submodule(path).weight.detach().flatten(1)
        gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(gram, gram[0, 0] * torch.eye(len(gram)), rtol=0, atol=1e-4 * gram[0, 0].item())


def test_only_weights_and_biases_change() -> None:
    """Norms, their running statistics and their counts stay; so do the modules and their hooks."""
    model = randomized(Backwards())
    net = edited(model, LSUV(), inputs=(torch.randn(64, 8),))
    layers = ("stem", "block.first", "block.second", "classifier")
    assert altered(model, net) == {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    assert not added(model, net) | removed(model, net)
    assert retyped(model, net) == {}
    assert not any(net.get_submodule(layer).bias.any() for layer in layers)
    assert not any(module._forward_hooks for module in net.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())


def test_a_layer_that_does_not_run_is_named() -> None:
    class Idle(Backwards):
        def forward(self, x: Tensor) -> Tensor:
            return self.block.sum(self.stem(x), self.block.second(self.block.relu(self.block.first(self.stem(x)))))

    with pytest.raises(nl.UnsupportedEditError, match="at classifier: the layer does not run on the given batch"):
        edited(Idle(), LSUV(), inputs=(torch.randn(64, 8),))


@pytest.mark.parametrize("value", [0.0, float("inf"), float("nan")])
def test_a_layer_without_a_finite_variance_is_named(value: float) -> None:
    with pytest.raises(nl.UnsupportedEditError, match=r"at stem: .*variance"):
        edited(Backwards(), LSUV(), inputs=(torch.full((64, 8), value),))
