"""The beginnings of target sentences, and what an encoder-decoder says comes next."""

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
        score: what the search ranked it by; the log probability, divided by a penalty if it has one.
    """

    tokens: list[int]
    log_probability: float
    score: float


class EncoderDecoder(Protocol):
    """A network that reads its source once and then tells the next target token, again and again.

    Memory and cache are tensors with the batch first, in tuples, lists or dictionaries as the network likes.
    """

    def encode(self, source: Tensor) -> Any:
        """Of source [B, S] the memory."""

    def decode(self, tokens: Tensor, memory: Any, cache: Any = None) -> tuple[Tensor, Any]:
        """Of tokens [B, T] that follow those in the cache: logits [B, T, vocabulary], and the cache with them."""


class Prefixes:
    """N beginnings of target sentences, at first only the start of each.

    Args:
        network: a module with ``encode`` and ``decode``, see `EncoderDecoder`.
        source: int64 [N, S].
        use_cache: whether to decode the last token alone, with the network's cache; else every token anew.

    Raises:
        TypeError: the network has no such methods.
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
        """log p of each token to come next [N, vocabulary], in single precision at least.

        Padding and start come never; so does what is not a number.
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
        """Go on with the prefixes at some rows [M], in this order; a row may come several times."""
        if len(rows) == len(self.tokens) and torch.equal(rows, torch.arange(len(rows), device=rows.device)):
            return

        def select(value: Tensor) -> Tensor:
            return value.index_select(0, rows)

        self.tokens = select(self.tokens)
        self._memory, self._cache = tree_map_only(Tensor, select, (self._memory, self._cache))

    def append(self, tokens: Tensor) -> None:
        """Put one token [N] behind each prefix."""
        self.tokens = torch.cat([self.tokens, tokens[:, None]], 1)


def length_limits(source: Tensor, longer_by: int) -> Tensor:
    """The most tokens [N] of each translation, its end not counted: those of the source [N, S], and some more.

    Raises:
        ValueError: `longer_by` is negative.
    """
    if longer_by < 0:
        raise ValueError(f"A translation may be longer than its source by 0 or more tokens, not by {longer_by}.")
    return (source != SPECIAL_TOKENS.padding).sum(1) + longer_by


def only_end(log_probabilities: Tensor, rows: Tensor) -> Tensor:
    """The log probabilities [N, vocabulary], of which the chosen rows (bool [N]) keep the end's only."""
    end = torch.arange(log_probabilities.shape[1], device=rows.device) == SPECIAL_TOKENS.end
    return log_probabilities.masked_fill(rows[:, None] & ~end, -torch.inf)
