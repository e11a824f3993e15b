"""Experiments that separate the causes of a batch that cannot be fitted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

Function = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """Three layers, with a function before the last one."""

    def __init__(self, function: Function = lambda x: x) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(12, 64), nn.Linear(64, 64), nn.Linear(64, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(F.relu(self.second(F.relu(self.first(x))))))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """One attention with an additive mask that leaves the positions from the first up to `seen`."""

    def __init__(self, seen: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(20, 32), nn.Parameter(0.1 * torch.randn(8, 32))
        self.mixing, self.last = nn.Linear(32, 96), nn.Linear(32, 4)
        self.register_buffer("mask", torch.zeros(8, 8).masked_fill(torch.arange(8) >= seen, -1e9))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mixing(self.tokens(x) + self.places).chunk(3, -1)
        weights = (query @ key.transpose(1, 2) / 32**0.5 + self.mask).softmax(-1)
        return self.last((weights @ value)[:, -1])  # type: ignore[no-any-return]


def vectors() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(32, 12), torch.arange(32) % 4


def tokens() -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    x = torch.randint(0, 20, (32, 8))
    x[:, 0] = 1
    return x, torch.arange(32) % 4


@pytest.mark.parametrize(
    ("network", "batch", "said"),
    [
        (lambda: Net(lambda x: 1e-7 * x), vectors, "mul"),
        (lambda: Net(lambda x: 0.1 * x), vectors, ""),
        (lambda: Attention(1), tokens, "mask"),
        (lambda: Attention(8), tokens, ""),
    ],
)
def test_an_operation_that_prevents_the_fit(
    network: Callable[[], nn.Module], batch: Callable[[], tuple[Tensor, Tensor]], said: str
) -> None:
    model = network()
    diagnosis = diagnose(model, batch(), optimizer=Adam(model.parameters(), 1e-2), trial_steps=20)
    assert bool(kinds(diagnosis)) == bool(said), str(diagnosis)
    if said:
        found = diagnosis.findings[0]
        assert (found.kind, found.where) == ("prevented_by_operation", ("forward",))
        assert said in found.title
        assert "test_experiments.py" in found.title
        assert float(found.evidence["loss_changed"]) < 0.5
        without = diagnose(
            model, batch(), optimizer=Adam(model.parameters(), 1e-2), trial_steps=20, investigate=False
        )
        assert "prevented_by_operation" not in kinds(without)


def test_initial_weights_that_prevent_the_fit() -> None:
    model = Net()
    nn.init.constant_(model.second.bias, -5.0)
    diagnosis = diagnose(model, vectors(), optimizer=Adam(model.parameters(), 1e-3), trial_steps=20)
    (found,) = (found for found in diagnosis.findings if found.kind == "prevented_by_weights")
    assert found.where == ("second",)


def test_pairs_that_contradict_each_other() -> None:
    x = vectors()[0][:16].repeat(2, 1)
    found = diagnose(Net(), (x, torch.arange(32) // 16), trial_steps=20).findings
    assert [one.kind for one in found] == ["prevented_by_data", "not_fitted"]
    assert "shuffled" in found[0].title


def test_a_state_that_is_detached_at_every_step() -> None:
    class Recurrent(nn.Module):
        def __init__(self, every: int) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.cell, self.last, self.every = nn.GRUCell(3, 16), nn.Linear(16, 4), every

        def forward(self, x: Tensor) -> Tensor:
            state = x.new_zeros(len(x), 16)
            for time in range(x.shape[1]):
                state = self.cell(x[:, time], state)
                if (time + 1) % self.every == 0:
                    state = state.detach() if time + 1 < x.shape[1] else state
            return self.last(state)  # type: ignore[no-any-return]

    batch = torch.randn(16, 8, 3), torch.arange(16) % 4
    found = diagnose(Recurrent(1), batch).findings[0]
    assert (found.kind, found.evidence["steps"]) == ("detached", 7)
    assert not kinds(diagnose(Recurrent(5), batch))
    assert not kinds(diagnose(Recurrent(9), batch))
