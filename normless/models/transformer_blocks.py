"""The residual blocks of a transformer, each one sum with layer norm before its branch or after it; attention."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.nn import ResidualSum
from normless.residual.declared import BlockStructure, Projections

Placement = Literal["pre", "post"]


class KeysValues(NamedTuple):
    """What an attention looks up: keys and values of S positions, each (B, heads, S, width / heads)."""

    keys: Tensor
    values: Tensor


class Attention(nn.Module):
    """softmax(Q Kᵀ / √(width / heads)) V in every head, then the output projection (Vaswani et al., section 3.2).

    Keys have no bias, since it would add the same value to all scores of a query, and the softmax ignores that.
    Weights are Xavier uniform, biases zero.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(f"Attention divides its width into equal heads, got width={width} and heads={heads}.")
        self.heads = heads
        self.query, self.key = xavier_linear(width, width), xavier_linear(width, width, bias=False)
        self.value, self.output = xavier_linear(width, width), xavier_linear(width, width)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, *, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        return self.attend(x, memory, mask=mask, causal=causal)[0]

    def attend(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        known: KeysValues | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> tuple[Tensor, KeysValues]:
        """The output at each position of x, and the keys and values of all positions.

        Args:
            x: (B, T, width).
            memory: (B, S, width), the source of keys and values; None where `known` has all of them.
            known: keys and values of earlier positions; those of `memory` follow them.
            mask: (B or 1, 1, T or 1, S), True at positions that may be attended to; None for all.
            causal: whether no position attends to a later one, the last of the S positions being that of the last of
            x.
        """
        queries = self._split(self.query(x))
        if memory is not None:
            new = KeysValues(self._split(self.key(memory)), self._split(self.value(memory)))
            if known is not None:
                new = KeysValues(*(torch.cat(pair, 2) for pair in zip(known, new, strict=True)))
            known = new
        assert known is not None
        length, total = queries.shape[2], known.keys.shape[2]
        if causal and length != total:
            # The fused operation's own causal mask takes the first position of both for the same one.
            seen = torch.ones(length, total, dtype=torch.bool, device=x.device).tril(total - length)
            mask, causal = seen if mask is None else mask & seen, False
        found = F.scaled_dot_product_attention(queries, known.keys, known.values, attn_mask=mask, is_causal=causal)
        joined: Tensor = self.output(found.transpose(1, 2).flatten(2))
        return joined, known

    def _split(self, x: Tensor) -> Tensor:
        """Features as heads: (B, T, width) to (B, heads, T, width / heads)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)


def xavier_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer, its weight Xavier uniform (variance 2 / (fan-in + fan-out)), its bias zero."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class LayerCache(NamedTuple):
    """Keys and values that a decoder layer keeps: of the target so far, and of the memory."""

    own: KeysValues
    memory: KeysValues


class TransformerBlock(nn.Module):
    """What attention and feed-forward blocks share: x + f(N(x)) for pre-norm, N(x + f(x)) for post-norm.

    f ends in dropout (Vaswani et al., section 5.4), N is layer normalization.
    """

    def __init__(self, width: int, norm: Placement, dropout: float) -> None:
        super().__init__()
        self.placement = norm
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.sum = ResidualSum()

    def before(self, x: Tensor) -> Tensor:
        """What the branch reads. Shapes: (B, T, width) to the same."""
        normalized: Tensor = self.norm(x) if self.placement == "pre" else x
        return normalized

    def after(self, x: Tensor, branch: Tensor) -> Tensor:
        """The block's output from its input and its branch's output. Shapes: both (B, T, width), to the same."""
        total: Tensor = self.sum(x, self.dropout(branch))
        return total if self.placement == "pre" else self.norm(total)

    def structure(self, *branch: str | Projections) -> BlockStructure:
        """The block's modules, with those of its branch but for norm and dropout."""
        if self.placement == "pre":
            return BlockStructure(branch=["norm", *branch, "dropout"])
        return BlockStructure(branch=[*branch, "dropout"], after_sum=["norm"])


class AttentionBlock(TransformerBlock):
    """A residual block whose branch is an attention, to the sequence itself or to a memory."""

    def __init__(self, width: int, heads: int, norm: Placement, dropout: float, to_memory: bool = False) -> None:
        super().__init__(width, norm, dropout)
        self.attention = Attention(width, heads)
        self.to_memory = to_memory

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        known: KeysValues | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> tuple[Tensor, KeysValues]:
        h = self.before(x)
        looked_up = memory if self.to_memory else h
        h, known = self.attention.attend(h, looked_up, known=known, mask=mask, causal=causal)
        return self.after(x, h), known

    def residual_structure(self) -> BlockStructure:
        projections = Projections("attention.query", "attention.key", "attention.value", of_memory=self.to_memory)
        return self.structure(projections, "attention.output")


class FeedForwardBlock(TransformerBlock):
    """A residual block whose branch is W₂ relu(W₁ x + b₁) + b₂, for each position alone."""

    def __init__(self, width: int, hidden: int, norm: Placement, dropout: float) -> None:
        super().__init__(width, norm, dropout)
        self.linear1, self.relu, self.linear2 = xavier_linear(width, hidden), nn.ReLU(), xavier_linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """One residual block. Shapes: (B, T, width) to the same."""
        return self.after(x, self.linear2(self.relu(self.linear1(self.before(x)))))

    def residual_structure(self) -> BlockStructure:
        return self.structure("linear1", "relu", "linear2")


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward: two residual blocks. Shapes: (B, S, width) to the same."""

    def __init__(self, width: int, heads: int, hidden: int, norm: Placement, dropout: float) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(width, heads, norm, dropout)
        self.feed_forward = FeedForwardBlock(width, hidden, norm, dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Both blocks; `mask` (B, 1, 1, S) is True at the positions that count."""
        x, _ = self.self_attention(x, mask=mask)
        h: Tensor = self.feed_forward(x)
        return h


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the memory, feed-forward: three residual blocks."""

    def __init__(self, width: int, heads: int, hidden: int, norm: Placement, dropout: float) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(width, heads, norm, dropout)
        self.cross_attention = AttentionBlock(width, heads, norm, dropout, to_memory=True)
        self.feed_forward = FeedForwardBlock(width, hidden, norm, dropout)

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor, cache: LayerCache | None = None
    ) -> tuple[Tensor, LayerCache]:
        """The three blocks on positions that follow those in `cache`.

        Shapes: x (B, T, width), memory (B, S, width), mask (B, 1, 1, S), to (B, T, width).
        """
        own, looked_up = (None, None) if cache is None else cache
        x, own = self.self_attention(x, known=own, causal=True)
        # What the memory's keys and values are does not change from one step to the next.
        unread = memory if looked_up is None else None
        x, looked_up = self.cross_attention(x, unread, known=looked_up, mask=mask)
        return self.feed_forward(x), LayerCache(own, looked_up)
