"""Networks of which nothing is to be said: gates that open, bounded outputs, and cures by the shapes at hand."""

from __future__ import annotations

import pytest
import torch
from diagnosed import diagnose, kinds, vectors
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam


class Gated(nn.Module):
    """Branches with a gate that is computed from a condition, as in a diffusion transformer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.head = nn.Linear(50, 16), nn.Linear(16, 10)
        self.branches, self.gates = (nn.ModuleList(nn.Linear(16, 16) for _ in range(3)) for _ in range(2))
        for layer in (*self.gates, self.head):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = condition = self.stem(x)
        for branch, gate in zip(self.branches, self.gates, strict=True):
            x = x + gate(condition) * branch(torch.relu(x))
        return self.head(x)


@pytest.mark.parametrize("shut", [False, True])
def test_branches_are_dead_if_they_stay_zero_after_a_step(shut: bool) -> None:
    network = Gated()
    for branch in network.branches if shut else ():
        # The second factor of zero.
        nn.init.zeros_(branch.weight)
        nn.init.zeros_(branch.bias)
    assert kinds(diagnose(network, vectors())) == (["dead_branch"] if shut else [])


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    return 1 - (2 * (outputs * targets).sum() + 1) / (outputs.sum() + targets.sum() + 1)


def test_outputs_within_bounds_are_compared_with_constants_within_them() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 20)
    network = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4), nn.Sigmoid())
    diagnosis = diagnose(
        network, (x, (x[:, :4] > 0).float()), loss=dice, optimizer=Adam(network.parameters(), 3e-3), trial_steps=20
    )
    assert not kinds(diagnosis), str(diagnosis)


def test_outputs_of_a_column_have_a_cure_by_shape() -> None:
    network, x = nn.Linear(3, 1, bias=False), torch.rand(64, 3)
    with pytest.warns(UserWarning, match="target size"):
        found = diagnose(network, (x, x.sum(1)), loss=F.mse_loss)
    assert "targets.unsqueeze(1)" in str(found)
    network.weight = nn.Parameter(network.weight.detach()[0])
    pair = nn.Sequential(network, nn.Unflatten(0, (64, 1)), nn.Linear(1, 1))
    assert not kinds(diagnose(pair, (x, x.sum(1, keepdim=True)), loss=F.mse_loss))
