"""The gradient through time, positions that a task needs, and inputs that are equal."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.optim import Adam

THROUGH_TIME = {"vanishing_through_time", "exploding_through_time"}


class Recurrent(nn.Module):
    """A recurrence of tanh or of no function, with a multiple of an orthogonal matrix."""

    def __init__(self, scale: float, *, is_linear: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.read, self.step, self.last = nn.Linear(4, 32), nn.Linear(32, 32, bias=False), nn.Linear(32, 4)
        nn.init.orthogonal_(self.step.weight, scale)
        self.is_linear = is_linear

    def forward(self, x: Tensor) -> Tensor:
        state = self.read(x[:, 0])
        for place in range(1, x.shape[1]):
            state = self.step(state) + self.read(x[:, place])
            state = state if self.is_linear else state.tanh()
        result: Tensor = self.last(state)
        return result


def sequences(target: int, length: int = 60) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(64, length, 4)
    return x, x[:, target].argmax(1)


def through_time(model: nn.Module, batch: tuple[Tensor, Tensor], rate: float = 1e-3) -> list[str]:
    diagnosis = diagnose(model, batch, optimizer=Adam(model.parameters(), rate), trial_steps=20)
    return [known.kind for known in (*diagnosis.findings, *diagnosis.advice) if known.kind in THROUGH_TIME]


@pytest.mark.parametrize(
    ("scale", "is_linear", "target", "expected"),
    [
        (0.5, False, 0, ["vanishing_through_time"]),
        (1.0, True, 0, []),
        pytest.param(0.5, False, -1, [], marks=pytest.mark.slow),
        (1.3, True, -1, ["exploding_through_time"]),
    ],
)
def test_the_first_steps_of_a_recurrence(scale: float, is_linear: bool, target: int, expected: list[str]) -> None:
    model = Recurrent(scale, is_linear=is_linear)
    # Where only the last step is needed, and is not drowned by the first ones, the batch is fitted at a larger rate.
    assert through_time(model, sequences(target), 1e-2 if target and not is_linear else 1e-3) == expected


def test_the_ratio_is_that_of_autograd() -> None:
    model, (x, y) = Recurrent(0.5), sequences(0)
    found = next(
        known
        for known in diagnose(model, (x, y), optimizer=Adam(model.parameters(), 1e-3), trial_steps=20).advice
        if known.kind in THROUGH_TIME
    )
    given = x.clone().requires_grad_()
    F.cross_entropy(model.eval()(given), y).backward()  # type: ignore[no-untyped-call]
    assert given.grad is not None
    steps = given.grad.double().abs().sum((0, 2))
    ratio = float(steps[-15:].max() / steps[:15].max())
    assert float(found.evidence["ratio"]) == pytest.approx(ratio, rel=1e-3)


class Triplets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.body(anchor), self.body(positive), self.body(negative)


@pytest.mark.parametrize("is_equal", [True, False])
def test_negatives_that_are_the_positives(is_equal: bool) -> None:
    model = Triplets()
    torch.manual_seed(2)
    anchor = torch.randn(32, 8)
    positive, negative = anchor + 0.1 * torch.randn(32, 8), torch.randn(32, 8)
    batch = (anchor, positive, positive.clone() if is_equal else negative), torch.zeros(32)

    def loss(outputs: tuple[Tensor, Tensor, Tensor], _targets: Tensor) -> Tensor:
        return F.triplet_margin_loss(*outputs)

    found = kinds(diagnose(model, batch, loss=loss, optimizer=Adam(model.parameters(), 1e-2), trial_steps=20))
    assert ("equal_inputs" in found) == is_equal
    # Targets that the loss does not read may all be 0.
    assert "one_label" not in found


def test_equal_inputs_of_a_network_that_trains_are_advice() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            result: Tensor = self.body(torch.cat([first, second], 1))
            return result

    model, x = Both(), torch.randn(32, 8)
    batch = (x, x.clone()), torch.arange(32) % 4
    assert not kinds(diagnose(model, batch, optimizer=Adam(model.parameters(), 1e-2), trial_steps=20))
