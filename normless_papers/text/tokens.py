"""Sentences of tokens: the special tokens, padded batches, and buckets of similar length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from normless_lab.data import epoch_sequence

Integers = NDArray[np.int64]


class SpecialTokens(NamedTuple):
    """Numbers of the tokens for padding, before a target sentence, after every sentence, and for unknown bytes."""

    padding: int = 0
    start: int = 1
    end: int = 2
    unknown: int = 3


SPECIAL_TOKENS = SpecialTokens()


def tensors(sentences: Iterable[Sequence[int]]) -> list[Tensor]:
    """Return sentences of tokens as tensors, int64 [length] each."""
    return [torch.tensor(tokens) for tokens in sentences]


def padded(sentences: Sequence[Tensor], rows: Integers, padding: int = SPECIAL_TOKENS.padding) -> Tensor:
    """Return the sentences at some rows [B] as int64 [B, longest], the rest of each row padding."""
    return pad_sequence([sentences[row] for row in rows], batch_first=True, padding_value=padding)


def token_buckets(lengths: NDArray[Any], max_tokens: int) -> list[slice]:
    """Cut sentences [N] in ascending order of length into batches.

    A batch of B sentences, padded to its longest, has B · max(length) ≤ max_tokens tokens; none could take the next
    sentence too. The number of batches depends on the lengths alone.
    """
    if len(lengths) and lengths[-1] > max_tokens:
        raise ValueError(
            f"The longest sentence has {lengths[-1]} tokens, and a batch at most {max_tokens}; allow larger batches "
            "or leave longer sentences out."
        )
    buckets, start = [], 0
    for row, length in enumerate(lengths.tolist()):
        if (row + 1 - start) * length > max_tokens:
            buckets.append(slice(start, row))
            start = row
    if len(lengths):
        buckets.append(slice(start, len(lengths)))
    return buckets


def bucket_epoch(lengths: NDArray[Any], max_tokens: int, *, seed: int, epoch: int) -> list[Integers]:
    """Return the rows [B] of each batch of one epoch in random order: a pure function of the arguments.

    Sentences of the same length are shuffled, so an epoch has other batches than the one before.
    """
    generator = np.random.default_rng(epoch_sequence(seed, epoch))
    order = generator.permutation(len(lengths))
    order = order[np.argsort(lengths[order], kind="stable")]
    buckets = token_buckets(lengths[order], max_tokens)
    return [order[buckets[position]] for position in generator.permutation(len(buckets))]


def sorted_buckets(lengths: NDArray[Any], max_tokens: int) -> list[Integers]:
    """Return the rows [B] of each batch of an evaluation, shortest first; a longer sentence is its own batch."""
    order = np.argsort(lengths, kind="stable")
    buckets = token_buckets(np.minimum(lengths[order], max_tokens), max_tokens)
    return [order[bucket] for bucket in buckets]
