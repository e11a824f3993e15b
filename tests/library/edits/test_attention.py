"""Norms of queries and keys and caps of logits, held against attention written by hand."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from edit_helpers import close
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


class Block(nn.Module):
    """A residual attention of two heads; `attend` is written in several ways, or is torch's module."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def packed(self, x: Tensor) -> tuple[Tensor, ...]:
        packed = F.linear(self.norm(x), self.attention.in_proj_weight, self.attention.in_proj_bias)
        return tuple(t.unflatten(-1, (2, 4)).transpose(1, 2) for t in packed.chunk(3, -1))  # type: ignore[no-untyped-call]

    def end(self, x: Tensor, y: Tensor) -> Any:
        return self.head(x + self.attention.out_proj(y.transpose(1, 2).flatten(2)))

    def forward(self, x: Tensor) -> Any:
        h = self.norm(x)
        return self.head(x + self.attention(h, h, h, attn_mask=CAUSAL, need_weights=False)[0])


class ByFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj, self.head = (
            nn.LayerNorm(8),
            nn.Linear(8, 24),
            nn.Linear(8, 8),
            nn.Linear(8, 3),
        )

    def packed(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.reshape(*x.shape[:2], 2, 4).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))

    def end(self, x: Tensor, y: Tensor) -> Any:
        return self.head(x + self.proj(y.transpose(1, 2).flatten(2)))

    def forward(self, x: Tensor) -> Any:
        return self.end(x, self.attend(*self.packed(x)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class ByOperator(ByFunction):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = (q @ k.transpose(-2, -1)) / sqrt(4)
        return logits.masked_fill(CAUSAL, float("-inf")).softmax(-1) @ v


class ByScaledQueries(ByFunction):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = torch.full((5, 5), float("-inf")).triu(1)
        return torch.matmul(F.softmax(torch.matmul(q * 4**-0.5, k.mT) + mask, -1), v)


def by_hand(model: Any, norm: bool, cap: float | None) -> Tensor:
    """The outputs, written out; γ is 1."""
    q, k, v = model.packed(X)
    if norm:
        q, k = (t / (t.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    logits = q @ k.transpose(-2, -1) / 2
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    made: Tensor = model.end(X, logits.masked_fill(CAUSAL, float("-inf")).softmax(-1) @ v)
    return made


@pytest.mark.parametrize("kind", [ByFunction, ByOperator, ByScaledQueries, Block])
@pytest.mark.parametrize(
    ("scheme", "norm", "cap"),
    [("qk_norm", True, None), ("soft_capping(cap=0.5)", False, 0.5), ("qk_norm + SoftCapLogits(cap=2)", True, 2.0)],
)
def test_against_attention_by_hand(kind: type[nn.Module], scheme: str, norm: bool, cap: float | None) -> None:
    model = kind()
    net, wanted = nl.convert(model, scheme, X), by_hand(model, norm, cap)
    close(net(X), wanted, rtol=1e-4, atol=1e-5)
    close(model(X), by_hand(model, False, None), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(X), wanted, atol=1e-4)
    assert len({*net.state_dict()} - {*model.state_dict()}) == (2 if norm else 0)
    if cap == 2:
        close(torch.export.export(net, (X,)).module()(X), wanted, rtol=1e-4, atol=1e-5)
