"""What a network returns and what a loss takes, in every form; activations before a loss that has its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

import normless as nl


class Shaped(nn.Module):
    """A regression whose output has the given shape for each example."""

    def __init__(self, shape: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.body, self.shape = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)), shape

    def forward(self, x: Tensor) -> Any:
        return self.shape(self.body(x))


class Two(nn.Module):
    """Two heads, whose outputs are put together by a function."""

    def __init__(self, together: Callable[[Tensor, Tensor], Any], last: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.together = nn.Sequential(nn.Linear(6, 32), nn.ReLU()), together
        self.policy, self.value, self.last = nn.Linear(32, 3), nn.Linear(32, 1), last or nn.Identity()

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x)
        return self.together(self.last(self.policy(hidden)), self.value(hidden).squeeze(-1))


@dataclass
class Outputs:
    policy: Tensor
    value: Tensor
    loss: Tensor | None = None


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(48, 6, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] * x[:, 1]).tanh()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("form", ["one axis", "a number", "dictionary"])
def test_outputs_of_one_axis_and_none(form: str, training: bool) -> None:
    torch.manual_seed(0)
    x, y = batch()
    shapes = {
        "one axis": lambda z: z.squeeze(-1),
        "a number": lambda z: z.mean(),
        "dictionary": lambda z: {"q": z[:, 0]},
    }
    model = Shaped(shapes[form])
    targets = y.mean() if form == "a number" else y

    def squared(outputs: Any, targets: Tensor) -> Tensor:
        return (outputs["q"] - targets).square().mean()

    loss = squared if form == "dictionary" else F.mse_loss
    diagnosis = diagnose(model, (x, targets), loss=loss, optimizer=Adam(model.parameters(), 3e-3), trial_steps=5)
    assert not kinds(diagnosis), str(diagnosis)
    measured = nl.probe(model, (x, targets), ["logits", "activations"], loss=loss, training=training)
    assert len(measured.logits) == 1


def both(outputs: Any, targets: Any) -> Tensor:
    policy, value = outputs.values() if isinstance(outputs, dict) else outputs
    return F.cross_entropy(policy, targets[0]) + F.mse_loss(value, targets[1])


def of_object(outputs: Outputs, targets: Any) -> Tensor:
    return both((outputs.policy, outputs.value), targets)


def of_batch(outputs: Any, batch: Any) -> Tensor:
    return both(outputs, batch[1]) + 0 * batch[0].sum()


def of_unnamed_batch(outputs: Any, given: Any) -> Tensor:
    inputs, (actions, returns) = given
    return both(outputs, (actions, returns)) + 0 * inputs[:, 5].sum()


def with_parts(outputs: Any, targets: Any) -> Any:
    return {"kept": torch.ones(3), "loss": both(outputs, targets)}


FORMS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[..., Any]]] = {
    "tuple": (lambda p, v: (p, v), both),
    "list": (lambda p, v: [p, v], both),
    "dictionary": (lambda p, v: {"policy": p, "value": v}, both),
    "object": (Outputs, of_object),
    "batch by name": (lambda p, v: (p, v), of_batch),
    "batch": (lambda p, v: (p, v), of_unnamed_batch),
    "a loss of several values": (lambda p, v: (p, v), with_parts),
}


@pytest.mark.parametrize("form", FORMS)
def test_losses_over_several_outputs(form: str) -> None:
    """Both heads get a gradient, and the loss is that of the loss itself."""
    torch.manual_seed(0)
    x, y = batch()
    targets = (x[:, 2] > 0).long(), y
    together, loss = FORMS[form]
    model = Two(together)
    diagnosis = diagnose(model, (x, targets), loss=loss, optimizer=Adam(model.parameters(), 3e-3), trial_steps=10)
    assert not kinds(diagnosis), str(diagnosis)
    expected = both(Two.forward.__get__(_alike(model))(x), targets)
    reported = next(one.summary for one in diagnosis.checks if one.name == "trial steps")
    assert f"{float(expected.detach()):.3g}" in reported
    reach = next(one.summary for one in diagnosis.checks if one.name == "reach of the gradient")
    assert reach.startswith("6 of 6")


def _alike(model: Two) -> Two:
    """The same network with a tuple as its output."""
    other = Two(lambda p, v: (p, v))
    other.load_state_dict(model.state_dict())
    return other


def test_a_network_that_returns_its_loss_needs_no_targets() -> None:
    torch.manual_seed(0)
    x, y = batch()

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor, labels: Tensor) -> Outputs:
            logits = self.head(x)
            return Outputs(logits, y, F.cross_entropy(logits, labels))

    inputs = {"x": x, "labels": (x[:, 0] > 0).long()}
    model = Own()
    diagnosis = diagnose(model, inputs, optimizer=Adam(model.parameters(), 1e-2), trial_steps=5)
    assert not kinds(diagnosis), str(diagnosis)
    assert not kinds(diagnose(model, (inputs, None), loss=lambda outputs, _: outputs.loss))


def by_hand(outputs: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of logits, written out."""
    return (outputs.clamp_min(0) - outputs * targets + torch.log1p(torch.exp(-outputs.abs()))).mean()


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    p = torch.sigmoid(outputs)
    return F.binary_cross_entropy(p, targets) * 0.25


def soft_dice(outputs: Tensor, targets: Tensor) -> Tensor:
    p = outputs.view(-1).sigmoid()
    return 1 - 2 * (p * targets.view(-1)).sum() / (p.sum() + targets.sum())


def negative_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    return -(outputs - outputs.logsumexp(1, keepdim=True)).gather(1, targets[:, None]).mean()


SQUASHED: dict[str, tuple[nn.Module, Callable[..., Tensor], bool]] = {
    "sigmoid, with logits": (nn.Sigmoid(), nn.BCEWithLogitsLoss(), True),
    "sigmoid, by hand": (nn.Sigmoid(), by_hand, True),
    "sigmoid, focal": (nn.Sigmoid(), focal, True),
    "sigmoid, dice of logits": (nn.Sigmoid(), soft_dice, True),
    "sigmoid": (nn.Sigmoid(), F.binary_cross_entropy, False),
    "logits": (nn.Identity(), F.binary_cross_entropy_with_logits, False),
    "logits, by hand": (nn.Identity(), by_hand, False),
    "sigmoid, squared": (nn.Sigmoid(), F.mse_loss, False),
}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", SQUASHED)
def test_an_activation_before_a_loss_of_logits(name: str, trained: bool) -> None:
    torch.manual_seed(0)
    last, loss, wrong = SQUASHED[name]
    x, y = torch.randn(64, 6), torch.randn(64, 6)
    model, y = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4), last), (x[:, :4] > 0).float()
    _train(model, x, y, loss, 60 * trained)
    assert kinds(diagnose(model, (x, y), loss=loss))[:1] == ["activation_after_classifier"] * wrong


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1), negative_likelihood])
def test_a_softmax_before_a_softmax(loss: Callable[..., Tensor], trained: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 6), torch.arange(64) % 4
    wrong, right = (
        nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 4), last) for last in (nn.Softmax(1), nn.Identity())
    )
    for model in (wrong, right):
        _train(model, x, y, loss, 200 * trained)
    assert kinds(diagnose(wrong, (x, y), loss=loss))[:1] == ["softmax_before_loss"]
    assert not kinds(diagnose(right, (x, y), loss=loss))


def _train(model: nn.Module, x: Tensor, y: Tensor, loss: Callable[..., Tensor], steps: int) -> None:
    optimizer = Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()


BROADCASTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[..., Tensor], bool]] = {
    "absolute differences": (lambda z: z, lambda o, t: (o - t).abs().mean(), True),
    "Huber's, by hand": (
        lambda z: z,
        lambda o, t: torch.where((o - t).abs() < 1, (o - t) ** 2, (o - t).abs()).mean(),
        True,
    ),
    "a logarithm between": (lambda z: z, lambda o, t: (torch.log1p(o.exp()) - t.exp().log1p()).pow(2).mean(), True),
    "equal shapes": (lambda z: z.squeeze(1), lambda o, t: (o - t).abs().mean(), False),
    "all pairs on purpose": (
        lambda z: z.squeeze(1),
        lambda o, t: (o[:, None] - t[None]).abs().min(1)[0].mean(),
        False,
    ),
    "a mean beside them": (lambda z: z.squeeze(1), lambda o, t: ((o - t) / t.std()).abs().mean(), False),
}


@pytest.mark.parametrize("name", BROADCASTS)
def test_every_output_against_every_target(name: str) -> None:
    torch.manual_seed(0)
    shape, loss, wrong = BROADCASTS[name]
    x, y = batch()
    found = diagnose(Shaped(shape), (x, y), loss=loss).findings
    assert [one.kind for one in found] == ["label_shape"] * wrong
    if wrong:
        assert (found[0].evidence["outputs"], found[0].evidence["targets"]) == ("(48, 1)", "(48,)")
