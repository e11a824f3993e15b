"""Prefixes of target sentences, and an encoder-decoder's probabilities of their next tokens."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from normless.data import SPECIAL_TOKENS


class Hypothesis(NamedTuple):
    """A finished target sentence.

    Attributes:
        tokens: without start and end.
        log_probability: Σ log p (nats) of its tokens and of the end, each given those before it and the source.
        score: by which the search ranks: the log probability, divided by the length penalty if any.
    """

    tokens: list[int]
    log_probability: float
    score: float


class EncoderDecoder(Protocol):
    """A network that encodes the source once and decodes the target token by token.

    Memory and cache are tensors with the batch first, in any nesting of tuples, lists and dictionaries.
    """

    def encode(self, source: Tensor) -> Any:
        """The memory of source [B, S]."""

    def decode(self, tokens: Tensor, memory: Any, cache: Any = None) -> tuple[Tensor, Any]:
        """Logits [B, T, vocabulary] of tokens [B, T] that follow those in the cache, and the extended cache."""


class Prefixes:
    """N prefixes of target sentences, initially the start token of each.

    The cache decodes the last token alone. A network that is no `EncoderDecoder` is a TypeError.
    """

    def __init__(self, network: nn.Module, source: Tensor, *, use_cache: bool = True) -> None:
        if not (callable(getattr(network, "encode", None)) and callable(getattr(network, "decode", None))):
            raise TypeError(
                f"A search asks a network for encode(source) and decode(tokens, memory, cache); "
                f"{type(network).__name__} does not have both."
            )
        self._network = cast(EncoderDecoder, network)
        self._use_cache = use_cache
        self._memory = self._network.encode(source)
        self._cache: Any = None
        self.tokens = source.new_full((len(source), 1), SPECIAL_TOKENS.start)

    def next_log_probabilities(self) -> Tensor:
        """log p of each next token [N, vocabulary], in single precision at least; −∞ for NaN.

        Padding and start are excluded.
        """
        tokens = self.tokens if self._cache is None else self.tokens[:, -1:]
        logits, cache = self._network.decode(tokens, self._memory, self._cache)
        if self._use_cache:
            self._cache = cache
        last = logits[:, -1].to(torch.promote_types(logits.dtype, torch.float32))
        log_probabilities = last.log_softmax(-1).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        log_probabilities[:, [SPECIAL_TOKENS.padding, SPECIAL_TOKENS.start]] = -torch.inf
        return log_probabilities

    def keep(self, rows: Tensor) -> None:
        """Select the prefixes at rows [M], in this order; a row may occur several times."""
        if len(rows) == len(self.tokens) and torch.equal(rows, torch.arange(len(rows), device=rows.device)):
            return

        def select(value: Tensor) -> Tensor:
            return value.index_select(0, rows)

        self.tokens = select(self.tokens)
        self._memory, self._cache = tree_map_only(Tensor, select, (self._memory, self._cache))

    def append(self, tokens: Tensor) -> None:
        """Append one token [N] to each prefix."""
        self.tokens = torch.cat([self.tokens, tokens[:, None]], 1)


def length_limits(source: Tensor, longer_by: int) -> Tensor:
    """The largest number of tokens [N] of each translation, without its end: of source [N, S] plus `longer_by`."""
    if longer_by < 0:
        raise ValueError(f"A translation may be longer than its source by 0 or more tokens, not by {longer_by}.")
    return (source != SPECIAL_TOKENS.padding).sum(1) + longer_by


def only_end(log_probabilities: Tensor, rows: Tensor) -> Tensor:
    """The log probabilities [N, vocabulary], −∞ for all tokens but the end in the selected rows (bool [N])."""
    end = torch.arange(log_probabilities.shape[1], device=rows.device) == SPECIAL_TOKENS.end
    return log_probabilities.masked_fill(rows[:, None] & ~end, -torch.inf)
