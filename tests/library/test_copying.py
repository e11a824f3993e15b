"""Networks that keep tensors computed from parameters: every function that copies a network takes them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from streams_of_networks import IMAGES, WIDTH, Network
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune, spectral_norm

import normless as nl
from normless._internal.copying import copied


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
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.3),
    "pruned twice": pruned_twice,
    "pruned bias": lambda layer: prune.random_unstructured(layer, "bias", 0.5),
    "parametrized": parametrizations.spectral_norm,
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


@pytest.mark.parametrize("kind", ["weight norm", "spectral norm"])
def test_plan_is_what_convert_does_and_mixing_is_measured(kind: str) -> None:
    model, x = network(kind)
    model(x).sum().backward()
    assert {change.path for change in nl.plan(model, "skipinit", x)} >= {"blocks.0", "blocks.1", "blocks.0.norm1"}
    assert not nl.mixes_examples(model, x)
    model.train()(x).sum().backward()
    mixing = nl.mixes_examples(model, x)
    assert {"blocks.0.norm1", "blocks.1.norm2"} <= {one.path for one in mixing.modules}
    assert not nl.mixes_examples(nl.convert(model.eval(), "none", x), x)


@pytest.mark.parametrize("kind", ["weight norm", "pruned twice"])
def test_diagnose_copies_it_with_its_optimizer(kind: str) -> None:
    model, x = network(kind)
    model.train()(x).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    optimizer.step()
    (copy, other), before = copied((model, optimizer)), model.state_dict()
    assert {id(one) for group in other.param_groups for one in group["params"]} == {*map(id, copy.parameters())}
    copy.train()(x).sum().backward()
    other.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    nl.diagnose(model, (x, torch.tensor([0, 1, 2, 0])), loss=F.cross_entropy)
