"""Forwards that pass on keywords which their signature does not name: they stay arguments."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normless as nl

X, MASK = torch.randn(3, 4), torch.rand(3, 1)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
        y: Tensor = self.layer(x) * scale
        return y if mask is None else y * mask


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(4), Inner()

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return x + self.inner(self.norm(x), **kwargs)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second, self.head = nn.Linear(4, 4), Block(), Block(), nn.Linear(4, 2)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        return self.head(self.second(self.first(self.stem(x), **kwargs), **kwargs))


def halved(model: Network, x: Tensor, **kwargs: Any) -> Tensor:
    h = model.stem(x)
    for block in (model.first, model.second):
        h = block(h, **kwargs) / 2**0.5
    return model.head(h)


GIVEN: list[dict[str, Any]] = [{}, {"mask": MASK}, {"scale": 2.0}, {"scale": 0.5, "mask": MASK}]


@pytest.mark.parametrize("made", GIVEN)
def test_the_rewritten_code_takes_them_whatever_it_was_converted_with(made: dict[str, Any]) -> None:
    model = Network()
    net = nl.convert(model, "batch_norm_sqrt2", X, **made)
    for called in (*GIVEN, {"mask": 3 * MASK - 1}):
        torch.testing.assert_close(net(X, **called), halved(model, X, **called))
        assert torch.equal(pickle.loads(pickle.dumps(net))(X, **called), net(X, **called))
