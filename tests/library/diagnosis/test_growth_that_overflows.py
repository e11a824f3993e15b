"""A signal that grows until values are not finite is the cause that is named first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, std: float) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        nn.init.normal_(self.layer.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.layer(x)
        return y


def stack(depth: int, std: float, *end: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Block(std) for _ in range(depth)), *end, nn.Linear(16, 3))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor, Tensor], Tensor], str]] = {
    "squares of outputs": (lambda: stack(70, 0.45), F.mse_loss, "growing_variance")
}


@pytest.mark.parametrize("name", CASES)
def test_which_is_named_first(name: str) -> None:
    make, loss, first = CASES[name]
    batch = torch.randn(8, 16), torch.randn(8, 3)
    diagnosis = diagnose(make(), batch, loss=loss, trial_steps=0)
    assert "not_finite" in kinds(diagnosis)
    assert kinds(diagnosis)[0] == first, str(diagnosis)
