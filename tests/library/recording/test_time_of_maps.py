"""The time of a map is linear in depth."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

import normless as nl


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(self.norm(x))  # type: ignore[no-any-return]


def test_time_is_linear_in_depth() -> None:
    """Count the calls of Python functions."""

    def calls(depth: int) -> int:
        net, x = nn.Sequential(*(Block() for _ in range(depth))), torch.randn(3, 4)
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
