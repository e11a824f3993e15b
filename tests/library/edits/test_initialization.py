"""Edits of initial values: distributions, LSUV, tied embeddings, the search for α."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import sqrt
from pathlib import Path

import pytest
import torch
from edit_helpers import added, altered, edited, images, randomized, removed, retyped
from torch import Tensor, nn

import normless as nl
from normless.edits import LSUV, ChannelBiases, Edit, Reinitialize, RemoveNorms, ZeroClassifier
from normless.models import dense, resnet_cifar, wide_resnet
from normless.nn import Pointwise, ResidualSum
from normless.residual import BlockStructure, Structure

VARIANCE = {
    "he": lambda fan_in, fan_out: 2 / fan_out,
    "he_fan_in": lambda fan_in, fan_out: 2 / fan_in,
    "xavier": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
    "lecun": lambda fan_in, fan_out: 1 / fan_in,
}


@pytest.mark.parametrize("kind", VARIANCE)
def test_weights_are_normal_with_the_stated_variance(kind: str) -> None:
    net = edited(resnet_cifar(14), Reinitialize(kind))
    pooled = []
    for path in ["stem", *(f"blocks.{i}.conv{j}" for i in range(6) for j in (1, 2)), "classifier"]:
        weight = net.get_submodule(path).weight.detach()
        area = weight[0, 0].numel()
        variance = VARIANCE[kind](weight.shape[1] * area, weight.shape[0] * area)
        count = weight.numel()
        # A sample variance of n normal numbers deviates by √(2/n) of it.
        assert weight.square().mean().item() == pytest.approx(variance, rel=5 * sqrt(2 / count)), path
        assert abs(weight.mean().item()) <= 5 * sqrt(variance / count), path
        pooled.append(weight.flatten() / sqrt(variance))
    together = torch.cat(pooled)
    assert together.square().mean().item() == pytest.approx(1, rel=5 * sqrt(2 / together.numel()))
    assert together.pow(4).mean().item() == pytest.approx(3, rel=0.05)


def test_orthogonal_rows_or_columns() -> None:
    net = edited(wide_resnet(10, 1), Reinitialize("orthogonal"))
    for path in ["stem", "blocks.1.conv1", "blocks.2.shortcut", "classifier"]:
        weight = net.get_submodule(path).weight.detach().flatten(1)
        gram = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(gram, torch.eye(len(gram)), rtol=0, atol=1e-5)


def test_only_weights_change_and_layer_biases_become_zero() -> None:
    model = randomized(wide_resnet(10, 1))
    net = edited(model, ChannelBiases(), Reinitialize("he"))
    weights = {"stem", "classifier"} | {f"blocks.{i}.{name}" for i in range(3) for name in ("conv1", "conv2")}
    weights |= {f"blocks.{i}.shortcut" for i in (1, 2)}
    assert altered(model, net) == {f"{path}.weight" for path in weights} | {"classifier.bias"}
    assert added(model, net) == {f"{path}.bias" for path in weights - {"classifier"}}
    assert not removed(model, net)
    assert retyped(model, net) == {}
    assert not any(net.get_submodule(path).bias.any() for path in weights)


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


@pytest.mark.parametrize("tolerance", [0.02, 1e-4])
@pytest.mark.parametrize("case", CASES)
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


def test_random_state_moves_by_the_orthogonal_draws_alone() -> None:
    """The calibrating pass runs in evaluation mode: no dropout draws anything."""
    model, x = Backwards(), torch.randn(64, 8)
    state = torch.get_rng_state()
    drawn = edited(model, Reinitialize("orthogonal"))
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    net = edited(model, LSUV(), inputs=(x,))
    assert torch.equal(torch.get_rng_state(), after)
    ratio = net.stem.weight / drawn.stem.weight
    torch.testing.assert_close(ratio, ratio[0, 0].expand_as(ratio))


def test_a_layer_of_zero_variance_is_named() -> None:
    with pytest.raises(nl.UnsupportedEditError, match=r"at stem: .* does not converge to 1; it is 0"):
        edited(Backwards(), LSUV(), inputs=(torch.zeros(64, 8),))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_batch_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(nl.UnsupportedEditError, match=r"at stem: .* does not converge to 1"):
        edited(Backwards(), LSUV(), inputs=(torch.full((64, 8), value),))


def test_a_layer_that_does_not_run_is_named() -> None:
    class Idle(Backwards):
        def forward(self, x: Tensor) -> Tensor:
            return self.block.sum(self.stem(x), self.block.second(self.block.relu(self.block.first(self.stem(x)))))

    with pytest.raises(nl.UnsupportedEditError, match="at classifier: the layer does not run on the given batch"):
        edited(Idle(), LSUV(), inputs=(torch.randn(64, 8),))


TOKENS = torch.randint(30, (4, 6), generator=torch.Generator().manual_seed(0))


class Tied(nn.Module):
    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding, self.inner, self.classifier = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 30)
        if tied:
            self.classifier.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        logits: Tensor = self.classifier(x + torch.relu(self.inner(x)))
        return logits


@pytest.mark.parametrize("edit", [ZeroClassifier(), Reinitialize("xavier"), LSUV()], ids=repr)
@pytest.mark.parametrize("tied", [True, False])
def test_the_shared_weight_stays(edit: Edit, tied: bool) -> None:
    model = Tied(tied)
    net = edited(model, edit, inputs=(TOKENS,))
    assert (net.classifier.weight is net.embedding.weight) == tied
    changed = altered(model, net)
    assert "embedding.weight" not in changed
    assert ("classifier.weight" in changed) == (not tied)
    assert ("inner.weight" in changed) == (not isinstance(edit, ZeroClassifier))
    assert not net.classifier.bias.any()


def test_lsuv_takes_inputs_by_name_and_refuses_packed_attention() -> None:
    net = nl.convert(Tied(False), "lsuv", tokens=TOKENS)
    x = net.embedding(TOKENS)
    assert net.inner(x).var(correction=0).item() == pytest.approx(1, abs=0.02)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    with pytest.raises(nl.UnsupportedEditError, match=r"self_attn: it is not a layer with one weight and one output"):
        nl.convert(layer, "lsuv", torch.randn(2, 5, 8))


def test_packed_projections_are_drawn_each_by_its_own_shape() -> None:
    layer = nn.TransformerEncoderLayer(64, 2, 64, batch_first=True)
    with torch.no_grad():
        layer.self_attn.in_proj_bias.fill_(1.0)
    net = nl.convert(layer, "xavier", torch.randn(2, 5, 64))
    for part in net.self_attn.in_proj_weight.chunk(3):
        assert part.var().item() == pytest.approx(1 / 64, rel=0.06)
    assert not net.self_attn.in_proj_bias.any()
    assert not net.self_attn.out_proj.bias.any()


class Branches(nn.Module):
    """Pre-norm branches whose inputs have the given scale."""

    def __init__(self, scale: float, classes: int = 5) -> None:
        super().__init__()
        self.scale, self.stem, self.head = scale, nn.Linear(8, 16), nn.Linear(16, classes)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.scale * self.stem(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            h = h + layer(norm(h))
        out: Tensor = self.head(h)
        return out


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv, self.head = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.stem(x)
        return {"map": self.head(h + self.conv(self.norm(h).relu()))}


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "classes": (lambda: Branches(1.0), torch.randn(12, 8)),
    "sequences": (lambda: Branches(1.0), torch.randn(3, 7, 8)),
    "one value": (lambda: Branches(1.0, classes=1), torch.randn(12, 8)),
    "images": (Images, torch.randn(2, 3, 8, 8)),
}


def alphas(net: nn.Module) -> set[float]:
    return {round(one.alpha.item(), 6) for one in net.modules() if isinstance(one, Pointwise)}


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("classes", "dyt(alpha=search)"),
        ("images", "derf(alpha=search)"),
        *(pytest.param(name, "dyt(alpha=search)", marks=pytest.mark.slow) for name in ("sequences", "one value")),
    ],
)
def test_the_candidate_of_the_lowest_loss_is_taken(name: str, scheme: str) -> None:
    torch.manual_seed(0)
    make, x = NETWORKS[name]
    model = make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    changes = [one.what for one in nl.plan(model, scheme, x) if "trial steps" in one.what]
    net = nl.convert(model, scheme, x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    (said,) = changes
    losses = {float(alpha): float(loss) for alpha, loss in re.findall(r"([\d.]+): ([\d.e+-]+|inf)", said)}
    assert alphas(net) == {min(losses, key=losses.__getitem__)}
    again = nl.convert(model, scheme, x)
    assert alphas(again) == alphas(net)
    # Weights are those of the network, not of a trial.
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items() if key in before)


def test_a_searched_network_is_saved(tmp_path: Path) -> None:
    x = torch.randn(12, 8)
    model = Branches(1.0)
    net = nl.convert(model, "dyt(alpha=search)", x)
    nl.save(net, tmp_path)
    assert alphas(nl.load(tmp_path, model)) == alphas(net)


def test_what_is_refused() -> None:
    x = torch.randn(12, 8)
    with pytest.raises(nl.UnsupportedEditError, match="attention_alpha goes with a number"):
        nl.convert(Branches(1.0), "dyt(alpha=search, attention_alpha=0.2)", x)
    with pytest.raises(ValueError, match="alpha is a number or search, not 'find'"):
        nl.convert(Branches(1.0), "dyt(alpha=find)", x)
    with pytest.raises(nl.UnsupportedEditError, match="finite"):
        nl.convert(Branches(1.0), "dyt(alpha=search)", x * float("nan"))
    mapped = nl.residual_map(Branches(1.0), x)
    with pytest.raises(nl.UnsupportedEditError, match=r"pass a batch, as in convert\(model, 'dyt\(alpha=search\)'"):
        nl.convert(Branches(1.0), "dyt(alpha=search)", residual_map=mapped)
