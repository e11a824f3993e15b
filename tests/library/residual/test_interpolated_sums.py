"""Residual sums x + c·(f(x) − x): torch.lerp and what says the same, as in nGPT; further ones are in the gallery."""

from __future__ import annotations

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from gallery.steps import Step, of_unit_skip
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl


class ByFunction(Step):
    """A branch of two linear layers, whose output and sum are unit vectors, and a learned step."""

    def __init__(self) -> None:
        super().__init__(of_unit_skip)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(torch.lerp(x, self.target(x), weight=self.step), dim=-1)


class ByMethod(ByFunction):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.lerp(self.target(x), self.step), dim=-1)


class OfANumber(ByFunction):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.lerp(self.target(x), 0.3), dim=-1)


class ScaledStep(ByFunction):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.lerp(self.target(x), self.step * 2.0), dim=-1)


class FromTheBranch(ByFunction):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.target(x).lerp(x, 1 - self.step), dim=-1)


class WrittenOut(ByFunction):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x + self.step * (self.target(x) - x), dim=-1)


@pytest.mark.parametrize("kind", [ByFunction, ByMethod, OfANumber, ScaledStep, FromTheBranch, WrittenOut])
def test_at_a_multiplier_of_zero_it_is_the_skip_path_and_at_one_the_network(kind: type[ByFunction]) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), kind(), kind(), nn.Linear(8, 3)), torch.randn(4, 8)
    found = nl.residual_map(model, x)
    assert [block.branch for block in found.blocks] == [("1.up", "1.down"), ("2.up", "2.down")]
    assert all(block.interpolates and not block.skip for block in found.blocks)
    closed = nl.convert(model, "skipinit(keep_scale=False)", x, residual_map=found)
    torch.testing.assert_close(closed(x), model[3](F.normalize(model[0](x), dim=-1)), rtol=1e-5, atol=1e-6)
    opened = nl.convert(model, "skipinit(alpha=1, keep_scale=False)", x, residual_map=found)
    for one in (opened, deepcopy(opened), pickle.loads(pickle.dumps(opened))):
        torch.testing.assert_close(one(x), model(x), rtol=1e-5, atol=1e-6)
    F.cross_entropy(closed(x), torch.tensor([0, 1, 2, 0])).backward()  # type: ignore[no-untyped-call]
    gradients: list[Any] = [one.grad for path, one in closed.named_parameters() if path.endswith("multiplier")]
    assert len(gradients) == 2
    assert all(one is not None and one.any() for one in gradients)


def two_products(m: Any, x: Tensor) -> Any:
    return (1 - m.step) * x + m.step * m.target(x)


def test_a_step_that_is_read_twice_is_no_gain_of_a_norm() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), Step(two_products), nn.Linear(8, 3)), torch.randn(4, 8)
    assert nl.residual_map(model, x).norms == {}
    assert nl.convert(model, "none", x).get_parameter("1.step").shape == (8,)
