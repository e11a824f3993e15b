"""Reshapes in place of transpositions: judged by their shapes, and by a network that has one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from diagnosed import diagnose, kinds
from torch import Tensor, nn

from normless.diagnosis.reshapes import is_mixing

SHAPES = [
    ((8, 12, 12, 3), (8, 3, 12, 12), True),  # height, width, channels to channels, height, width
    ((8, 64, 4, 4), (8, 16, 64), True),  # maps to patches
    ((8, 16, 64), (8, 64, 4, 4), True),  # patches to maps
    ((2, 8, 32), (8, 64), True),  # directions of a recurrent network beside the examples
    ((32, 10, 20), (640, 10), True),  # classes before positions
    ((8, 10, 4, 16), (8, 4, 10, 16), True),  # heads
    ((8, 64, 4, 4), (8, 64, 16), False),
    ((8, 64, 4, 4), (8, 1024), False),
    ((8, 10, 64), (8, 10, 4, 16), False),
    ((8, 16, 64), (8, 4, 4, 64), False),
    ((8, 10, 64), (8, 5, 128), False),  # pairs of positions
    ((8, 1, 30), (8, 30, 1), False),
    ((8, 24, 6, 6), (8, 2, 12, 6, 6), False),  # groups of channels
    ((8, 6, 2, 6, 2, 3), (8, 12, 12, 3), False),
]


@pytest.mark.parametrize(("before", "after", "mixes"), SHAPES)
def test_shapes_that_mix(before: tuple[int, ...], after: tuple[int, ...], mixes: bool) -> None:
    assert is_mixing(before, after) == mixes


class Images(nn.Module):
    def __init__(self, move: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.move, self.conv, self.head = move, nn.Conv2d(3, 16, 3), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.conv(self.move(x)).relu().mean((2, 3)))
        return result


def test_a_reshape_of_images() -> None:
    torch.manual_seed(0)
    batch = torch.randn(24, 10, 10, 3), torch.arange(24) % 4
    found = diagnose(Images(lambda x: x.reshape(len(x), 3, 10, 10)), batch).findings
    assert [one.kind for one in found] == ["mixing_reshape"]
    assert "x.reshape(len(x), 3, 10, 10)" in str(found[0].evidence["line"])
    assert not kinds(diagnose(Images(lambda x: x.permute(0, 3, 1, 2)), batch))
