"""The residual blocks of a transformer: each is one sum, with layer norm before the branch or after the sum."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor, nn

from normless.models.attention import Attention, KeysValues, xavier_linear
from normless.nn import ResidualSum
from normless.residual.declared import BlockStructure, Projections

Placement = Literal["pre", "post"]


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
        """The block's output, of its input and its branch's output. Shapes: both (B, T, width), to the same."""
        total: Tensor = self.sum(x, self.dropout(branch))
        return total if self.placement == "pre" else self.norm(total)

    def structure(self, *branch: str | Projections) -> BlockStructure:
        """The block's modules, with those of its branch but for norm and dropout."""
        norm = ["norm"]
        if self.placement == "pre":
            return BlockStructure(branch=[*norm, *branch, "dropout"])
        return BlockStructure(branch=[*branch, "dropout"], after_sum=norm)


class AttentionBlock(TransformerBlock):
    """A residual block whose branch is an attention, to the sequence itself or to a memory.

    Args:
        width: features of every position.
        heads: number of heads.
        norm: `pre` or `post`.
        dropout: rate at the end of the branch.
        to_memory: whether it looks up another sequence than its own.
    """

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
        """One residual block, and the keys and values of all positions so far; arguments as `Attention.attend`."""
        h = self.before(x)
        looked_up = memory if self.to_memory else h
        h, known = self.attention.attend(h, looked_up, known=known, mask=mask, causal=causal)
        return self.after(x, h), known

    def residual_structure(self) -> BlockStructure:
        """Name the block's modules, relative to it."""
        return self.structure(*self.attention.projections("attention", of_memory=self.to_memory))


class FeedForwardBlock(TransformerBlock):
    """A residual block whose branch is W₂ relu(W₁ x + b₁) + b₂, for each position alone."""

    def __init__(self, width: int, hidden: int, norm: Placement, dropout: float) -> None:
        super().__init__(width, norm, dropout)
        self.linear1, self.relu, self.linear2 = xavier_linear(width, hidden), nn.ReLU(), xavier_linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """One residual block. Shapes: (B, T, width) to the same."""
        return self.after(x, self.linear2(self.relu(self.linear1(self.before(x)))))

    def residual_structure(self) -> BlockStructure:
        """Name the block's modules, relative to it."""
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
