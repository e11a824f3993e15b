"""Methods that a module keeps in attributes: the forward code calls them, and they are rewritten there too."""

from __future__ import annotations

import pickle
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normless as nl


class Keeping(nn.Module):
    """A block whose addition is a method that it chose when it was built."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.keep()

    def keep(self) -> None:
        self.fusion: Any = self._add

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def _mean(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + y) / 2

    def branch(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(self.norm(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.fusion(x, self.branch(x))


class OneOfTwo(Keeping):
    def keep(self) -> None:
        self.fusion = self._mean


class OfADictionary(Keeping):
    def keep(self) -> None:
        self.ways = {"add": self._add, "mean": self._mean}

    def forward(self, x: Tensor) -> Tensor:
        return self.ways["add"](x, self.branch(x))


class Partially(Keeping):
    def keep(self) -> None:
        self.fusion = partial(self._scaled, factor=0.5)

    def _scaled(self, x: Tensor, y: Tensor, factor: float) -> Tensor:
        return x + factor * y


KINDS = [Keeping, OneOfTwo, OfADictionary, Partially]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_method_adds_by_the_new_module(kind: type[Keeping]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), kind(), kind()), torch.randn(4, 8)
    net: Any = nl.convert(model, "sqrt2(keep_scale=False)", x)
    without: Any = nl.convert(model, "none(keep_scale=False)", x)
    expected = without[0](x)
    for block in without[1:]:
        expected = block(expected) / 2**0.5
    for one in (net, deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(one(x), expected)
    assert type(model[1]) is kind
    torch.testing.assert_close(nl.convert(model, "skipinit(alpha=1, keep_scale=False)", x)(x), without(x))
