"""Maps of several threads equal those of one, and the time of a map is linear in depth."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

import normless as nl


class Block(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        self.calls: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(len(self.calls))
        return x + self.layers(self.norm(x))  # type: ignore[no-any-return]


def network(depth: int, layers: int = 1) -> nn.Sequential:
    return nn.Sequential(*(Block(4, layers) for _ in range(depth)))


def test_time_is_linear_in_depth() -> None:
    """Count the calls of Python functions."""

    def calls(depth: int) -> int:
        net, x = network(depth), torch.randn(3, 4)
        count = 0

        def note(_: Any, event: str, __: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            mapped = nl.residual_map(net, x)
        finally:
            sys.setprofile(before)
        assert mapped.depth == depth
        return count

    calls(2)
    assert calls(200) - calls(100) < 1.1 * (calls(100) - calls(2)) * 100 / 98
