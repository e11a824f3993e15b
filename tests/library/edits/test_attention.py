"""Norms of queries and keys and caps of logits, held against attention written by hand."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import normless as nl

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A residual attention of two heads; `attend` is written in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.reshape(*x.shape[:2], 2, 4).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.proj(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return self.head(x)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError


class ByFunction(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class ByOperator(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = (q @ k.transpose(-2, -1)) / sqrt(4)
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()
        return logits.masked_fill(~mask, float("-inf")).softmax(-1) @ v


class ByScaledQueries(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q * 4**-0.5
        mask = torch.full((q.shape[-2], q.shape[-2]), float("-inf")).triu(1)
        return torch.matmul(F.softmax(torch.matmul(q, k.mT) + mask, -1), v)


class Whole(nn.Module):
    """The same with torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h, mask = self.norm(x), torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.head(x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0])


STYLES: dict[str, Callable[[], Any]] = {
    "function": ByFunction,
    "operator": ByOperator,
    "scaled queries": ByScaledQueries,
    "module": Whole,
}


def expected(model: Any, x: Tensor, norm: bool, cap: float | None) -> Tensor:
    """The outputs, written out; γ is 1."""
    h = model.norm(x)
    whole = isinstance(model, Whole)
    packed = F.linear(h, model.attention.in_proj_weight, model.attention.in_proj_bias) if whole else model.qkv(h)
    q, k, v = (t.reshape(*x.shape[:2], 2, 4).transpose(1, 2) for t in packed.chunk(3, -1))
    if norm:
        q, k = (t / (t.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() for t in (q, k))
    logits = q @ k.transpose(-2, -1) / 2
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    out = (logits.masked_fill(mask, float("-inf")).softmax(-1) @ v).transpose(1, 2).flatten(2)
    return model.head(x + (model.attention.out_proj(out) if whole else model.proj(out)))


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("scheme", "norm", "cap"),
    [("qk_norm", True, None), ("soft_capping(cap=0.5)", False, 0.5), ("qk_norm + SoftCapLogits(cap=2)", True, 2.0)],
)
def test_against_attention_by_hand(style: str, scheme: str, norm: bool, cap: float | None) -> None:
    model = STYLES[style]()
    net = nl.convert(model, scheme, X)
    wanted = expected(model, X, norm, cap)
    torch.testing.assert_close(net(X), wanted, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(X), wanted, atol=1e-4)
    further = {name for name, _ in net.named_parameters()} - {name for name, _ in model.named_parameters()}
    assert len(further) == (2 if norm else 0)
    torch.testing.assert_close(torch.export.export(net, (X,)).module()(X), wanted, rtol=1e-4, atol=1e-5)


def test_layer_norm_without_shift() -> None:
    net = nl.convert(ByFunction(), "qk_norm(norm=layer)", X)
    kinds = [type(one).__name__ for name, one in net.named_modules() if name.endswith(("q_norm", "k_norm"))]
    assert kinds == ["LayerNorm", "LayerNorm"]
    groups = nl.param_groups(net, lr=0.1, weight_decay=0.1)
    decayed = {id(one) for group in groups if group["weight_decay"] for one in group["params"]}
    assert not any(id(one) in decayed for name, one in net.named_parameters() if "_norm." in name)


@pytest.mark.parametrize("batch_first", [True, False])
def test_torchs_attention_with_every_argument(batch_first: bool) -> None:
    from normless.nn.affine import of_class
    from normless.nn.attention import AttentionModule

    torch.manual_seed(1)
    for arguments in ({}, {"kdim": 6, "vdim": 7}, {"bias": False}):
        old = nn.MultiheadAttention(8, 2, batch_first=batch_first, **arguments).eval()  # type: ignore[arg-type]
        new = of_class(old, AttentionModule)
        new.start()
        q, k, v = torch.randn(3, 5, 8), torch.randn(3, 4, old.kdim), torch.randn(3, 4, old.vdim)
        if not batch_first:
            q, k, v = (one.transpose(0, 1) for one in (q, k, v))
        padding = torch.zeros(3, 4, dtype=torch.bool)
        padding[1, 2:] = True
        for given in (
            {},
            {"key_padding_mask": padding},
            {"attn_mask": torch.randn(5, 4), "need_weights": False},
            {"attn_mask": torch.rand(6, 5, 4) > 1.0, "average_attn_weights": False},
        ):
            one, other = (module(q, k, v, **given) for module in (old, new))
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        single = [one[0] if batch_first else one[:, 0] for one in (q, k, v)]
        torch.testing.assert_close(old(*single), new(*single), rtol=1e-4, atol=1e-5)


class Einsum(Block):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v)


class Normed(ByFunction):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().attend(F.rms_norm(q, (4,)), F.rms_norm(k, (4,)), v)


class Learned(Whole):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)


@pytest.mark.parametrize(
    ("make", "scheme", "said"),
    [
        (Einsum, "qk_norm", "its logits are made by einsum"),
        (Normed, "qk_norm", "its queries are normalized already"),
        (Learned, "qk_norm", "at attention: it adds a learned key"),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), "soft_capping", "it has no attention"),
        (ByFunction, "qk_norm(norm=batch)", "'batch'"),
        (ByFunction, "soft_capping(cap=0)", "a cap is above 0"),
        (ByFunction, "qk_norm + AddQKNorm()", "has norms of queries and keys already"),
        (Whole, "soft_capping + SoftCapLogits(cap=3)", "has a cap already"),
    ],
)
def test_what_is_refused(make: Callable[[], nn.Module], scheme: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        nl.convert(make(), scheme, X)
