"""The transformer that translates: an encoder, and a decoder that reads it (Vaswani et al. 2017)."""

from __future__ import annotations

from math import log, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn

from normless.models.layers import MODELS
from normless.models.transformer_blocks import LayerCache, Placement, TransformerBlock, TransformerLayer
from normless.residual.declared import Decoding, Structure

# Keys and values of every decoder layer; each tensor has the batch first, so that beams can be reordered by it.
Cache = tuple[LayerCache, ...]


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

    def residual_structure(self) -> Structure:
        modules = self.named_modules()
        blocks = [(path, one.residual_structure()) for path, one in modules if isinstance(one, TransformerBlock)]
        first = next(path for path, _ in blocks if path.startswith("decoder."))
        pre = self.encoder.norm is not None
        return Structure(
            stem=["encoder.dropout"],
            blocks=blocks,
            head=["decoder.norm", "classifier"] if pre else ["classifier"],
            decoding=Decoding(first=first, memory=["encoder.norm"] if pre else [], stem=["decoder.dropout"]),
        )

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
