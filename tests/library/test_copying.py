"""Networks that keep tensors computed from parameters: every function that copies a network takes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from streams_of_networks import IMAGES, WIDTH, Network
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm

import normless as nl


class Caching(nn.Conv2d):
    """A convolution that keeps its last output for a regularizer."""

    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = super().forward(x)
        return self.last


def weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return torch.nn.utils.weight_norm(layer)


def pruned_twice(layer: nn.Module) -> nn.Module:
    prune.random_unstructured(layer, "weight", 0.3)
    return prune.ln_structured(layer, "weight", 0.25, n=2, dim=0)  # type: ignore[no-any-return]


COMPUTED: dict[str, Callable[[nn.Module], object]] = {
    "weight norm": weight_norm,
    "spectral norm": spectral_norm,
    "pruned twice": pruned_twice,
    "parametrized": parametrizations.spectral_norm,
    "parametrized weight norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
}


def wrapped(layer: nn.Conv2d, kind: str) -> nn.Module:
    layer.bias = nn.Parameter(torch.randn(WIDTH))
    COMPUTED[kind](layer)
    return layer


def network(kind: str) -> tuple[nn.Module, Tensor]:
    """A trained network whose weights are computed, after a pass with gradients, in evaluation; and inputs."""
    model = Network(lambda layer: wrapped(layer, kind))
    if kind == "weight norm":
        model.stem = Caching(3, WIDTH, 3, padding=1)
    for _ in range(3):
        model(IMAGES).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.rand_like(parameter)
    return model.eval(), IMAGES


@pytest.mark.parametrize("kind", COMPUTED)
def test_networks_for_evaluation_keep_their_outputs(kind: str) -> None:
    model, x = network(kind)
    expected = model(x)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for changed in (nl.freeze(model), nl.fold(model, x)[0], nl.fuse_for_inference(model, x)):
        torch.testing.assert_close(changed(x), expected, rtol=1e-4, atol=1e-5)
    converted = nl.convert(model, "skipinit(alpha=1, keep_scale=False)", x)
    fused = nl.fuse_for_inference(converted, x)
    torch.testing.assert_close(fused(x), converted(x), rtol=1e-4, atol=1e-5)
    assert {name.rpartition(".")[2] for name in fused.state_dict()} == {"weight", "bias"}
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


class Remembering(nn.Module):
    """A convolution and an offset that keeps what it computes in one of its attributes."""

    def __init__(self, layer: nn.Conv2d, where: str) -> None:
        super().__init__()
        self.layer, self.where = layer, where
        self.offset = nn.Parameter(torch.rand(layer.out_channels, 1, 1))
        self.table: dict[str, Tensor] = {}
        self.seen: list[Tensor] = []
        self.state = SimpleNamespace(tables=({},))

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "cache in evaluation" and not self.training:
            self.table.setdefault("cpu", self.offset * 2)
        y: Tensor = self.layer(x) + self.table.get("cpu", self.offset)
        if self.where == "list":
            self.seen.append(y)
        elif self.where == "attribute":
            self.last = (y, {"mean": y.mean()})
        elif self.where == "object":
            self.state.tables[0]["last"] = y
        return y


def held(model: nn.Module) -> list[str]:
    """What the modules that remember hold."""
    return [str({**vars(module), "where": ""}) for module in model.modules() if isinstance(module, Remembering)]


@pytest.mark.parametrize("where", ["cache in evaluation", "list", "attribute", "object"])
@pytest.mark.parametrize("ran", [False, True])
def test_what_forward_code_keeps_is_copied_and_left_as_it_was(where: str, ran: bool) -> None:
    model = Network(lambda layer: Remembering(layer, where)).eval()
    if ran:
        model(IMAGES)
    before = held(model)
    net = nl.convert(model, "skipinit(alpha=1)", IMAGES)
    assert held(model) == before
    if not ran:
        assert [len(text) for text in held(net)] == [len(text) for text in before]
        deepcopy(net)
    # No check has left a table without gradients.
    net(IMAGES).sum().backward()
    offsets = [module.offset.grad for module in net.modules() if isinstance(module, Remembering)]
    assert offsets
    assert ran or None not in offsets


def in_array(y: Tensor) -> object:
    array = np.empty(2, dtype=object)
    array[0] = y
    return array


@pytest.mark.parametrize("kept", [in_array, lambda y: zip([y], [2], strict=True)])
def test_any_container_of_activations_is_copied(kept: Callable[[Tensor], object]) -> None:
    model = Network(lambda layer: Caching(3, WIDTH, 3, padding=1) if layer.in_channels == 3 else layer)
    held = model.stem.last = kept(model(IMAGES))
    copied = nl.convert(model, "none", IMAGES).stem.last
    assert isinstance(copied, Tensor) or type(copied) is type(held)
    assert model.stem.last is held


def test_what_deepcopy_refuses_is_named() -> None:
    model = Network(lambda layer: layer)
    model.stem.stream = (number for number in range(3))
    with pytest.raises(nl.errors.UnsupportedEditError, match=r"attribute stream of its Conv2d.*generator"):
        nl.convert(model, "none", IMAGES)
