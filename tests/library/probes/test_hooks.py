"""Watchers receive the tensors that hooks and autograd give, or are told what was missed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import normless as nl
from normless.models import wide_resnet
from normless.probes.hooks._observe import observe
from normless.probes.hooks._watcher import Watcher
from normless.residual import Layer, ResidualBlock

SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "x + f": lambda x, f: x + f,
    "f + x": lambda x, f: f + x,
    "f += x": lambda x, f: f.__iadd__(x),
    "torch.add": torch.add,
    "f.add_(x)": lambda x, f: f.add_(x),
}


@dataclass
class Everything(Watcher):
    """Stores copies of all tensors."""

    sums: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)
    sum_gradients: dict[str, Tensor] = field(default_factory=dict)
    layers: list[tuple[Layer, Tensor, Tensor]] = field(default_factory=list)
    layer_gradients: list[tuple[Layer, Tensor, Tensor]] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    logits: list[Tensor] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)

    def on_layer(self, layer: Layer, module: nn.Module, x: Tensor, y: Tensor) -> None:
        self.layers.append((layer, x.clone(), y.clone()))

    def on_layer_gradient(self, layer: Layer, module: nn.Module, x: Tensor, gradient: Tensor) -> None:
        self.layer_gradients.append((layer, x.clone(), gradient.clone()))

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        assert block.name not in self.sums
        self.sums[block.name] = (skip.clone(), torch.stack(branches).sum(0), total.clone())

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        self.sum_gradients[block.name] = gradient.clone()

    def on_logits(self, logits: Tensor) -> None:
        self.logits.append(logits.clone())

    def on_logits_gradient(self, logits: Tensor, gradient: Tensor) -> None:
        self.logits.append(gradient.clone())

    def on_parameter_gradient(self, name: str, parameter: Tensor, gradient: Tensor) -> None:
        self.parameters[name] = gradient.clone()

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        super().on_missed(block, reason)
        self.forgotten.append(reason)


class Block(nn.Module):
    """A residual block with a given addition, and an addition of a parameter before it."""

    def __init__(self, width: int, add: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.offset = nn.Parameter(torch.randn(width))
        self.relu = nn.ReLU()
        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x, self.second(self.relu(self.first(x) + self.offset)))


def stack(*blocks: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), *blocks, nn.Linear(6, 3))


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])


def test_layers_and_their_gradients_are_those_of_autograd() -> None:
    torch.manual_seed(0)
    model = nl.convert(wide_resnet(10, 1), "skipinit(alpha=1)")
    x, targets = torch.randn(3, 3, 8, 8), torch.tensor([1, 2, 3])
    seen: dict[str, list[Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            output.retain_grad()
            seen[name] = [args[0].detach(), output]

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in model.named_modules() if name]
    F.cross_entropy(model(x), targets).backward()
    for handle in handles:
        handle.remove()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    watcher = Everything()
    observe(model, [watcher], x, targets)
    assert {layer.path for layer, _, _ in watcher.layers} == {layer.path for layer in nl.residual_map(model).layers()}
    for layer, entered, left in watcher.layers:
        torch.testing.assert_close(entered, seen[layer.path][0])
        torch.testing.assert_close(left, seen[layer.path][1].detach())
    assert len(watcher.layer_gradients) == len(watcher.layers)
    for layer, _, gradient in watcher.layer_gradients:
        torch.testing.assert_close(gradient, seen[layer.path][1].grad)
    assert watcher.parameters.keys() == expected.keys()
    for name, gradient in watcher.parameters.items():
        torch.testing.assert_close(gradient, expected[name])


class Moody(Block):
    """A block whose forward code differs from pass to pass."""

    mood = "plain"

    def forward(self, x: Tensor) -> Tensor:
        if self.mood == "adds before":
            x = x + torch.zeros_like(x)
        elif self.mood == "adds elsewhere":
            return x.add(self.second(self.relu(self.first(x + self.offset))))
        for _ in range(2 if self.mood == "repeats" else 1):
            x = super().forward(x)
        return x


@pytest.mark.parametrize(("mood", "times"), [("adds elsewhere", "0 times"), ("repeats", "2 times")])
def test_sums_that_the_map_does_not_know_are_reported(mood: str, times: str) -> None:
    model = stack(Moody(6, SUMS["x + f"]))
    x, targets = batch()
    found = nl.residual_map(model, x)
    model[1].mood = mood
    watcher = Everything()
    observe(model, [watcher], x, targets, residual_map=found)
    (reason,) = watcher.forgotten
    assert times in reason
    assert watcher.missed[0].path == "1"
    measured = nl.probe(model, (x, targets), ["signal", "backward"], residual_map=found)
    assert measured.signal.filter(regex="^(skip|branch|sum)").isna().all(axis=None)
    assert measured.backward.drop(columns=["block", "name"]).isna().all(axis=None)
    assert measured.missed == tuple(watcher.missed)
