"""What tracing leaves alone, which inputs it takes, and what it says where it cannot go on."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from normless import UnresolvedStructureError, residual_map
from normless.models import resnet_cifar

WIDTH = 6


class Remembering(nn.Module):
    """A block that keeps an attribute, draws random numbers and counts in a buffer as it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("count", torch.zeros(()))
        self.cache: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.cache = self.f(x)
        return x + F.dropout(self.norm(self.cache), 0.5, self.training) + 0 * torch.randn_like(x)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_weights_buffers_attributes_mode_and_random_state_stay(training: bool) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Remembering()).train(training)
    model[0].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    state = torch.get_rng_state()
    residual_map(model, torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(state, torch.get_rng_state())
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == attributes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (model.training, model[0].training, model[1].norm.training) == (training, False, training)
    assert "forward" not in vars(model)


@dataclass
class Answer:
    logits: Tensor
    cache: SimpleNamespace


class Named(nn.Module):
    """Takes its inputs by name and answers with types of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Linear(WIDTH, WIDTH)

    def forward(self, left: Tensor, right: Tensor | None = None, *, scale: float = 1.0) -> Answer:
        left = torch.tanh(left)
        total = left + scale * self.f(left)
        return Answer(total if right is None else total * right, SimpleNamespace(keys=left))


def test_inputs_by_name_and_outputs_of_any_type() -> None:
    x = torch.randn(2, WIDTH)
    by_position = residual_map(Named(), x, x, scale=0.5)
    by_name = residual_map(Named(), right=x, left=x, scale=0.5)
    assert by_position == by_name
    assert by_name.blocks[0].branch == ("f",)


def test_a_network_without_inputs_or_without_tensors_to_return_is_refused() -> None:
    with pytest.raises(UnresolvedStructureError, match="pass example inputs"):
        residual_map(Named())

    class Silent(Named):
        def forward(self, left: Tensor) -> str:
            return "nothing"

    with pytest.raises(UnresolvedStructureError, match="forward returned no tensor"):
        residual_map(Silent(), torch.randn(2, WIDTH))


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


def test_a_network_that_cannot_be_exported_names_the_module_and_says_what_to_do() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.ReLU(), Branching()))
    with pytest.raises(UnresolvedStructureError) as caught:
        residual_map(model, torch.ones(2, WIDTH))
    message = str(caught.value)
    assert message.startswith("torch.export could not trace this Sequential: it stopped in 1.1, a Branching (line ")
    assert "test_exporting.py" in message
    assert "torch.where" in message
    assert len(message) < 1000
    assert "forward" not in vars(model)


def test_inputs_that_do_not_fit_are_told_apart_from_networks_that_cannot_be_traced() -> None:
    with pytest.raises(UnresolvedStructureError, match=r"it stopped in conv1, a Conv2d .*Check that forward takes"):
        residual_map(torchvision.models.resnet18(), torch.zeros(1, 5, 64, 64))


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f, self.g = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        return torch.addcmul(x, self.f(x), torch.sigmoid(self.g(x)))


class IntoAView(Fused):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.g(x))
        x[:, :3] += self.f(x)[:, :3]
        return 2 * x


class Conditional(Fused):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        return torch.cond(x.sum() > 0, lambda x: x + self.f(x), lambda x: x + self.g(x), (x,))


class IdleNorm(Fused):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        return x + self.f(x)


UNRESOLVED = {
    Fused: ("1", "addcmul adds and multiplies at once"),
    IntoAView: ("1", "writes into a part of a tensor"),
    Conditional: ("1", "cond runs a graph of its own"),
    IdleNorm: ("1.norm", "did not run on these inputs"),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("kind", UNRESOLVED, ids=lambda kind: kind.__name__)
def test_what_cannot_be_understood_is_named_with_its_module_and_strict_raises(kind: type[nn.Module]) -> None:
    model, x = nn.Sequential(nn.Linear(WIDTH, WIDTH), kind()), torch.randn(2, WIDTH)
    path, reason = UNRESOLVED[kind]
    (found,) = residual_map(model, x).unresolved
    assert found.path == path
    assert reason in found.reason
    with pytest.raises(UnresolvedStructureError, match=f"Parts of this Sequential cannot be understood: {path}: .*"):
        residual_map(model, x, strict=True)


def test_strict_is_silent_where_all_is_understood() -> None:
    x = torch.zeros(1, 3, 64, 64)
    model = torchvision.models.resnet18()
    assert residual_map(model, x, strict=True) == residual_map(model, x)
    assert residual_map(resnet_cifar(8), strict=True).depth == 3


def test_auxiliary_heads_that_do_not_run_are_named() -> None:
    model = torchvision.models.googlenet(init_weights=False, aux_logits=True).eval()
    found = residual_map(model, torch.zeros(1, 3, 96, 96))
    assert {one.path.partition(".")[0] for one in found.unresolved} == {"aux1", "aux2"}
    assert not any(path.startswith("aux") for path in found.norms)
