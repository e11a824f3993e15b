"""Batches of sentences of like length, each of at most so many tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from normless.data.epoch_randomness import epoch_sequence

Integers = NDArray[np.int64]


def token_buckets(lengths: NDArray[Any], max_tokens: int) -> list[slice]:
    """Cut sentences that are sorted by length, shortest first, into batches.

    A batch of B sentences, padded to its longest, has B · max(length) ≤ max_tokens tokens; none could take the next
    sentence too. The number of batches depends on the lengths alone.

    Args:
        lengths: [N], ascending, each at least 1.
        max_tokens: of a batch, with its padding.

    Raises:
        ValueError: a sentence alone is longer.
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
    """The batches of one epoch in random order, every sentence in one of them: a pure function of the arguments.

    Sentences of the same length come in random order, so an epoch has other batches than the one before.

    Args:
        lengths: [N], of the longer side of each pair.
        max_tokens: of a batch, with its padding.
        seed: of the run.
        epoch: counted from 0.

    Returns:
        For each batch the rows [B] of its sentences.

    Raises:
        ValueError: seed or epoch is negative, or a sentence is longer than a batch.
    """
    generator = np.random.default_rng(epoch_sequence(seed, epoch))
    order = generator.permutation(len(lengths))
    order = order[np.argsort(lengths[order], kind="stable")]
    buckets = token_buckets(lengths[order], max_tokens)
    return [order[buckets[position]] for position in generator.permutation(len(buckets))]


def sorted_buckets(lengths: NDArray[Any], max_tokens: int) -> list[Integers]:
    """The batches of an evaluation, shortest sentences first: for each the rows [B] of its sentences.

    A sentence longer than a batch is a batch of its own.
    """
    order = np.argsort(lengths, kind="stable")
    buckets = token_buckets(np.minimum(lengths[order], max_tokens), max_tokens)
    return [order[bucket] for bucket in buckets]
