"""Attention with normalized queries and keys, capped logits, or both.

    softmax(c · tanh(s · N(q) · N(k) / c) + mask) v

N is a norm over the features of a head with a learned γ (Henry et al. 2020; Dehghani et al. 2023), c the cap (Gemma
Team 2024), s the scale of the attention, 1/√d by default. Norms and cap are optional.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

QKNormKind = Literal["rms", "layer"]


class ChangedLogits(nn.Module):
    """A base class with optional norms of queries and keys, and an optional cap of the logits."""

    q_norm: nn.Module | None
    k_norm: nn.Module | None
    cap: float | None
    factor: float

    def start(self) -> None:
        """Start without norms and cap."""
        self.cap, self.factor = None, 1.0
        self.register_module("q_norm", None)
        self.register_module("k_norm", None)

    def add_norms(self, width: int, norm: QKNormKind, like: Tensor, factor: float = 1.0) -> None:
        """Normalize queries and keys of `width` features each, with γ = 1 of the dtype and device of `like`.

        `factor` is a factor of queries or keys before the norm, which the norm would undo.
        """
        self.factor = factor
        for name in ("q_norm", "k_norm"):
            made = nn.RMSNorm(width, eps=1e-6) if norm == "rms" else nn.LayerNorm(width, bias=False)
            setattr(self, name, made.to(like).train(self.training))

    def normalized(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize queries and keys, with the features of a head along the last axis."""
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return self.q_norm(q) * self.factor, self.k_norm(k)

    def capped(self, logits: Tensor, scale: float = 1.0) -> Tensor:
        """Cap `scale` times the logits: c/s · tanh(s · z / c)."""
        return logits if self.cap is None else torch.tanh(logits * (scale / self.cap)) * (self.cap / scale)

    def extra_repr(self) -> str:
        return super().extra_repr() if self.cap is None else f"cap={self.cap:g}"


class LogitProduct(ChangedLogits):
    """The product of queries (…, T, d) and keys (…, d, S) in hand-written attention; `scale` follows it."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.start()
        self.scale = scale

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        q, k = self.normalized(queries, keys.transpose(-2, -1))
        return self.capped(q @ k.transpose(-2, -1), self.scale)


class AttentionFunction(ChangedLogits):
    """`F.scaled_dot_product_attention` with the same arguments; with a cap, computed by single operations."""

    def __init__(self) -> None:
        super().__init__()
        self.start()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        query, key = self.normalized(query, key)
        if self.cap is None:
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (tensor.repeat_interleave(groups, -3) for tensor in (key, value))
        factor = 1 / sqrt(query.shape[-1]) if scale is None else scale
        logits = self.capped(query @ key.transpose(-2, -1) * factor)
        if is_causal:
            attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        return F.dropout(masked(logits, attn_mask).softmax(-1), dropout_p) @ value


class AttentionModule(ChangedLogits, nn.MultiheadAttention):
    """`nn.MultiheadAttention` with the same arguments and shapes, without `bias_k`, `bias_v`, `add_zero_attn`."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Any]:
        single = query.dim() == 2
        inputs = [
            tensor.unsqueeze(0 if self.batch_first else 1) if single else tensor for tensor in (query, key, value)
        ]
        inputs = inputs if self.batch_first else [tensor.transpose(0, 1) for tensor in inputs]
        q, k, v = (
            F.linear(tensor, *parts).reshape(*tensor.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for tensor, parts in zip(inputs, self._projections(), strict=True)
        )
        q, k = self.normalized(q, k)
        logits = self.capped(q @ k.transpose(-2, -1) / sqrt(self.head_dim))
        if attn_mask is not None:
            attn_mask = _excluding(attn_mask)
            is_of_heads = attn_mask.dim() == 3
            attn_mask = attn_mask.reshape(-1, self.num_heads, *attn_mask.shape[-2:]) if is_of_heads else attn_mask
        elif is_causal:
            attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        logits = masked(logits, attn_mask)
        if key_padding_mask is not None:
            padding = key_padding_mask.unsqueeze(0) if single else key_padding_mask
            logits = masked(logits, _excluding(padding)[:, None, None, :])
        weights = F.dropout(logits.softmax(-1), self.dropout, self.training)
        outputs = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        outputs = outputs if self.batch_first else outputs.transpose(0, 1)
        if single:
            outputs, weights = outputs.squeeze(0 if self.batch_first else 1), weights.squeeze(0)
        if not need_weights:
            return outputs, None
        return outputs, weights.mean(-3) if average_attn_weights else weights

    def _projections(self) -> list[tuple[Tensor, Tensor | None]]:
        """Return weight and bias of query, key and value."""
        if self._qkv_same_embed_dim:
            weights = list(self.in_proj_weight.chunk(3))
        else:
            weights = [cast(Tensor, getattr(self, f"{name}_proj_weight")) for name in "qkv"]
        biases = [None] * 3 if self.in_proj_bias is None else list(self.in_proj_bias.chunk(3))
        return list(zip(weights, biases, strict=True))


def _excluding(mask: Tensor) -> Tensor:
    """Invert a boolean mask of `nn.MultiheadAttention`, in which True excludes a key."""
    return ~mask if mask.dtype == torch.bool else mask


def masked(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Add a mask to logits, or set them to −∞ where a boolean mask is False."""
    if mask is None:
        return logits
    return logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask.to(logits.dtype)
