"""The encoder-decoder transformer for translation (Vaswani et al. 2017)."""

from __future__ import annotations

from math import log, sqrt
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.models._layers import MODELS
from normless.nn import ResidualSum

Placement = Literal["pre", "post"]
# Keys and values of S positions, each (B, heads, S, width / heads).
KeysValues = tuple[Tensor, Tensor]
# The cache of a decoder layer: keys and values of the target so far, and of the memory.
LayerCache = tuple[KeysValues, KeysValues]
# The caches of all decoder layers; the first axis of each tensor is the batch, so that beams can be reordered.
Cache = tuple[LayerCache, ...]


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
        """Return the output at each position of x (B, T, width), and the keys and values of all S positions.

        Keys and values of `memory` (B, S', width) follow the `known` ones. `mask` (B or 1, 1, T or 1, S) is True at
        positions that may be attended to. If `causal`, a position does not attend to later ones, and the last
        position of x is the last of S.
        """
        queries = self._split(self.query(x))
        if memory is not None:
            new = self._split(self.key(memory)), self._split(self.value(memory))
            known = new if known is None else (torch.cat((known[0], new[0]), 2), torch.cat((known[1], new[1]), 2))
        assert known is not None
        keys, values = known
        length, total = queries.shape[2], keys.shape[2]
        if causal and length != total:
            # The causal mask of the fused operation aligns the first positions of queries and keys.
            seen = torch.ones(length, total, dtype=torch.bool, device=x.device).tril(total - length)
            mask, causal = seen if mask is None else mask & seen, False
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=causal)
        joined: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return joined, known

    def _split(self, x: Tensor) -> Tensor:
        """Split features into heads: (B, T, width) to (B, heads, T, width / heads)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)


def xavier_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Make a linear layer with a Xavier uniform weight (variance 2 / (fan-in + fan-out)) and a zero bias."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class TransformerBlock(nn.Module):
    """A block with layer norm N: x + f(N(x)) for pre-norm, N(x + f(x)) for post-norm.

    f ends in dropout (Vaswani et al., section 5.4). Shapes: (B, T, width) to the same.
    """

    def __init__(self, width: int, norm: Placement, dropout: float) -> None:
        super().__init__()
        self.placement = norm
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)
        self.sum = ResidualSum()

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the branch."""
        normalized: Tensor = self.norm(x) if self.placement == "pre" else x
        return normalized

    def after(self, x: Tensor, branch: Tensor) -> Tensor:
        """Return the output of the block from its input and the output of its branch."""
        total: Tensor = self.sum(x, self.dropout(branch))
        return total if self.placement == "pre" else self.norm(total)


class AttentionBlock(TransformerBlock):
    """A residual block whose branch is an attention, to the sequence itself or to a memory."""

    def __init__(self, width: int, heads: int, norm: Placement, dropout: float, to_memory: bool = False) -> None:
        super().__init__(width, norm, dropout)
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
        super().__init__(width, norm, dropout)
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


class Memory(NamedTuple):
    """What the encoder made of source sentences: states (B, S, width), and which positions count, mask (B, S)."""

    states: Tensor
    mask: Tensor


class Stack(nn.Module):
    """Dropout, the layers of an encoder or a decoder, and a last norm in a pre-norm network.

    Embedded tokens (B, T, width) to states of that shape and, of a decoder, the cache with these positions too.
    `mask` (B, S) is True at the positions of the source that count.
    """

    def __init__(
        self, count: int, width: int, heads: int, hidden: int, norm: Placement, dropout: float, *, decodes: bool
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        layers = (TransformerLayer(width, heads, hidden, norm, dropout, decodes=decodes) for _ in range(count))
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width) if norm == "pre" else None

    def forward(
        self, x: Tensor, mask: Tensor, memory: Tensor | None = None, cache: Cache | None = None
    ) -> tuple[Tensor, Cache]:
        x, mask, caches = self.dropout(x), mask[:, None, None], []
        for index, layer in enumerate(self.layers):
            x, layer_cache = layer(x, mask, memory, None if cache is None else cache[index])
            caches.append(layer_cache)
        return x if self.norm is None else self.norm(x), tuple(caches)


@MODELS.register("transformer")
class Transformer(nn.Module):
    """An encoder-decoder with layer norm in every residual block, post-norm or pre-norm (Vaswani et al. 2017).

    Source, target and output projection share one matrix, drawn with standard deviation width^(-1/2) and multiplied
    by √width where it embeds (Vaswani et al., section 3.4); positions are sinusoids. There are 2 residual branches
    for each encoder layer and 3 for each decoder layer. Padding at the end of a source is not looked at; that at the
    end of a target comes after all it could change. Linear layers are Xavier uniform.

    Args:
        vocabulary: number of tokens, of both languages.
        layers: of the encoder.
        width: features of every position, an even number.
        heads: of every attention.
        feed_forward: hidden features of the feed-forward branches.
        norm: `post`, as published, or `pre`, with a further norm after each stack.
        dropout: rate at the end of every branch and on the embedded tokens.
        decoder_layers: of the decoder; as many as the encoder's if None.
        padding: the token that fills up short sentences.

    Shapes: source (B, S) and target (B, T), int64, to logits (B, T, vocabulary).

    Raises:
        ValueError: a number is out of range, or `norm` is neither.
    """

    def __init__(
        self,
        vocabulary: int,
        layers: int = 6,
        width: int = 512,
        heads: int = 8,
        feed_forward: int = 2048,
        norm: Placement = "post",
        dropout: float = 0.1,
        decoder_layers: int | None = None,
        padding: int = 0,
    ) -> None:
        super().__init__()
        depth = layers if decoder_layers is None else decoder_layers
        _check(vocabulary, layers, depth, width, norm, padding)
        self.padding = padding
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=padding)
        sizes = (width, heads, feed_forward, norm, dropout)
        self.encoder = Stack(layers, *sizes, decodes=False)
        self.decoder = Stack(depth, *sizes, decodes=True)
        self.classifier = nn.Linear(width, vocabulary, bias=False)
        self.classifier.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        with torch.no_grad():
            self.embedding.weight[padding].zero_()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits of the token that follows each position of the target, given the source."""
        return self.decode(target, self.encode(source))[0]

    def encode(self, source: Tensor) -> Memory:
        """What the decoder reads of source sentences. Shapes: (B, S) int64 to states (B, S, width), mask (B, S)."""
        # The first token always counts, so that a row of nothing but padding has something to look at.
        mask = (source != self.padding) | (torch.arange(source.shape[1], device=source.device) == 0)
        return Memory(self.encoder(self._embedded(source), mask)[0], mask)

    def decode(self, tokens: Tensor, memory: Memory, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Logits for the tokens that follow those in `cache`, None at the start, and the cache with these in it.

        Shapes: tokens (B, T), int64, to logits (B, T, vocabulary).
        """
        start = 0 if cache is None else cache[0][0][0].shape[2]
        h, cache = self.decoder(self._embedded(tokens, start), memory.mask, memory.states, cache)
        return self.classifier(h), cache

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        """Random source (2, 7) and target (2, 5) without padding, always the same."""
        generator = torch.Generator().manual_seed(0)
        vocabulary = self.embedding.num_embeddings
        drawn = torch.randint(vocabulary - 1, (2, 12), generator=generator)
        tokens = (drawn + (drawn >= self.padding)).to(self.embedding.weight.device)
        return tokens[:, :7], tokens[:, 7:]

    def _embedded(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Tokens (B, T), the first of them at position `start`, to (B, T, width)."""
        width = self.embedding.embedding_dim
        x: Tensor = self.embedding(tokens) * sqrt(width)
        return x + sinusoids(start, tokens.shape[1], width, tokens.device).to(x.dtype)


def sinusoids(start: int, count: int, width: int, device: torch.device | None = None) -> Tensor:
    """Positions start, start + 1, … as sines and cosines (Vaswani et al., section 3.5); shape (count, width).

    PE(p, 2i) = sin(p / 10000^(2i/width)),   PE(p, 2i + 1) = cos(p / 10000^(2i/width))
    """
    positions = torch.arange(start, start + count, device=device, dtype=torch.float32)
    rates = torch.exp(torch.arange(0, width, 2, device=device, dtype=torch.float32) * (-log(10000.0) / width))
    angles = positions[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def _check(vocabulary: int, layers: int, decoder_layers: int, width: int, norm: str, padding: int) -> None:
    problem = ""
    if min(layers, decoder_layers) < 1:
        numbers = f"layers={layers} and decoder_layers={decoder_layers}"
        problem = f"A transformer has at least one layer in its encoder and one in its decoder, got {numbers}."
    elif width < 2 or width % 2:
        problem = f"The width of a transformer is even, a sine and a cosine each, got width={width}."
    elif norm not in ("pre", "post"):
        problem = f"The norms of a transformer lie pre or post, not {norm!r}."
    elif vocabulary < 2 or not 0 <= padding < vocabulary:
        problem = f"The padding is one of at least two tokens, got padding={padding} and vocabulary={vocabulary}."
    if problem:
        raise ValueError(problem)
