"""The residual blocks of a transformer, each one sum with layer norm before its branch or after it; attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.nn import ResidualSum
from normless.residual.declared import BlockStructure, Projections

Placement = Literal["pre", "post"]
# What an attention looks up: keys and values of S positions, each (B, heads, S, width / heads).
KeysValues = tuple[Tensor, Tensor]
# What a decoder layer keeps: keys and values of the target so far, and of the memory.
LayerCache = tuple[KeysValues, KeysValues]


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
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        known: KeysValues | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> tuple[Tensor, KeysValues]:
        """The output at each position of x (B, T, width), and the keys and values of all S positions.

        Those of `memory` (B, S', width) follow those `known`. `mask` (B or 1, 1, T or 1, S) is True at positions that
        may be attended to. Where `causal` none attends to a later one, and the last of x is the last of S.
        """
        queries = self._split(self.query(x))
        if memory is not None:
            new = self._split(self.key(memory)), self._split(self.value(memory))
            known = new if known is None else (torch.cat((known[0], new[0]), 2), torch.cat((known[1], new[1]), 2))
        assert known is not None
        keys, values = known
        length, total = queries.shape[2], keys.shape[2]
        if causal and length != total:
            # The fused operation's own causal mask takes the first position of both for the same one.
            seen = torch.ones(length, total, dtype=torch.bool, device=x.device).tril(total - length)
            mask, causal = seen if mask is None else mask & seen, False
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal)
        joined: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
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


class TransformerBlock(nn.Module):
    """A block with layer norm N: x + f(N(x)) for pre-norm, N(x + f(x)) for post-norm.

    f ends in dropout (Vaswani et al., section 5.4). Shapes: (B, T, width) to the same.
    """

    def __init__(self, width: int, norm: Placement, dropout: float, branch: Sequence[str | Projections]) -> None:
        super().__init__()
        self.placement = norm
        self.branch = branch
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.sum = ResidualSum()

    def before(self, x: Tensor) -> Tensor:
        """What the branch reads."""
        normalized: Tensor = self.norm(x) if self.placement == "pre" else x
        return normalized

    def after(self, x: Tensor, branch: Tensor) -> Tensor:
        """The block's output from its input and its branch's output."""
        total: Tensor = self.sum(x, self.dropout(branch))
        return total if self.placement == "pre" else self.norm(total)

    def residual_structure(self) -> BlockStructure:
        if self.placement == "pre":
            return BlockStructure(branch=["norm", *self.branch, "dropout"])
        return BlockStructure(branch=[*self.branch, "dropout"], after_sum=["norm"])


class AttentionBlock(TransformerBlock):
    """A residual block whose branch is an attention, to the sequence itself or to a memory."""

    def __init__(self, width: int, heads: int, norm: Placement, dropout: float, to_memory: bool = False) -> None:
        projections = Projections("attention.query", "attention.key", "attention.value", of_memory=to_memory)
        super().__init__(width, norm, dropout, (projections, "attention.output"))
        self.attention = Attention(width, heads)
        self.to_memory = to_memory

    def forward(self, x: Tensor, memory: Tensor | None = None, **options: Any) -> tuple[Tensor, KeysValues]:
        """The options are those of `Attention`."""
        h = self.before(x)
        h, known = self.attention(h, memory if self.to_memory else h, **options)
        return self.after(x, h), known


class FeedForwardBlock(TransformerBlock):
    """A residual block whose branch is W₂ relu(W₁ x + b₁) + b₂, for each position alone."""

    def __init__(self, width: int, hidden: int, norm: Placement, dropout: float) -> None:
        super().__init__(width, norm, dropout, ("linear1", "relu", "linear2"))
        self.linear1, self.relu, self.linear2 = xavier_linear(width, hidden), nn.ReLU(), xavier_linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x, self.linear2(self.relu(self.linear1(self.before(x)))))


class TransformerLayer(nn.Module):
    """Self-attention, in a decoder attention to a memory, and feed-forward: two residual blocks, or three.

    A decoder's self-attention is causal, on positions after the cached ones. Shapes: x (B, T, width) to the same,
    memory (B, S, width); `mask` (B, 1, 1, S), of an encoder's x or of the memory, is True at positions that count.
    """

    def __init__(
        self, width: int, heads: int, hidden: int, norm: Placement, dropout: float, *, decodes: bool
    ) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(width, heads, norm, dropout)
        self.cross_attention = AttentionBlock(width, heads, norm, dropout, to_memory=True) if decodes else None
        self.feed_forward = FeedForwardBlock(width, hidden, norm, dropout)

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor | None = None, cache: LayerCache | None = None
    ) -> tuple[Tensor, LayerCache | None]:
        if self.cross_attention is None:
            x, _ = self.self_attention(x, mask=mask)
            return self.feed_forward(x), None
        own, looked_up = (None, None) if cache is None else cache
        x, own = self.self_attention(x, known=own, causal=True)
        # The memory's keys and values do not change from one step to the next.
        x, looked_up = self.cross_attention(x, memory if looked_up is None else None, known=looked_up, mask=mask)
        return self.feed_forward(x), (own, looked_up)
