"""Information that never reaches the output: layers of one unit, and networks that see no order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

BODY: Callable[[int], list[nn.Module]] = lambda width: [  # noqa: E731
    nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, width), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, 6),
]  # fmt: skip


class Gated(nn.Module):
    """A network with a gate of one unit that is not the only path."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate, self.head = nn.Linear(12, 32), nn.Linear(32, 1), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.body(x))
        result: Tensor = self.head(h * self.gate(h).sigmoid())
        return result


def test_a_layer_of_one_unit() -> None:
    torch.manual_seed(0)
    batch = torch.randn(48, 12), torch.arange(48) % 6
    found = diagnose(nn.Sequential(*BODY(1)), batch).findings
    assert [(finding.kind, finding.where) for finding in found] == [("one_unit", ("2",))]
    assert not kinds(diagnose(nn.Sequential(*BODY(16)), batch))
    assert not kinds(diagnose(Gated(), batch))
    assert not kinds(diagnose(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1)), batch[:1] * 2, loss=own))


def own(outputs: Tensor, inputs: Tensor) -> Tensor:
    return (outputs[:, 0] - inputs[:, 0]).square().mean()


def test_one_unit_that_suffices_is_advice() -> None:
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 64)[:, None] * torch.arange(1, 13)[None] / 6
    model = nn.Sequential(nn.Linear(12, 1), nn.Linear(1, 12))
    optimizer = Adam(model.parameters(), 0.1)
    found = diagnose(model, (x, x), loss=F.mse_loss, optimizer=optimizer, trial_steps=60)
    assert "one_unit" not in [finding.kind for finding in found.findings]
    assert "one_unit" in [finding.kind for finding in found.advice]


class Reader(nn.Module):
    """A transformer, or a mean of embeddings, of tokens."""

    def __init__(self, positions: bool, attends: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 32), nn.Linear(32, 3)
        self.positions = nn.Parameter(torch.randn(1, 6, 32) * positions)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.body: nn.Module = nn.TransformerEncoder(layer, 1) if attends else nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.head(self.body(self.embed(tokens) + self.positions).mean(1))
        return result


@pytest.mark.parametrize("ordered", [True, False])
def test_targets_that_depend_on_the_order(ordered: bool) -> None:
    torch.manual_seed(0)
    half = torch.randint(0, 9, (32, 6))
    tokens = torch.cat([half, half.flip(1)])
    first = tokens[:, 0] % 3 if ordered else tokens.sum(1) % 3
    batch = tokens, first
    for positions, attends in ((False, True), (True, True), (False, False), (True, False)):
        torch.manual_seed(0)
        found = diagnose(Reader(positions, attends), batch)
        # Without a nonlinear function between them, the mean removes the positions.
        sees_order = positions and attends
        assert kinds(found) == ["unordered"] * (ordered and not sees_order)
        advice = [finding.kind for finding in found.advice]
        assert ("unordered" in advice) == (not ordered and not sees_order)
