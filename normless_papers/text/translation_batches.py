"""Sentence pairs as tokens: the batches of an epoch, and those to evaluate on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from normless_lab.data import check_share
from normless_papers.text.text_sets import Pairs, ParallelText
from normless_papers.text.tokens import (
    SPECIAL_TOKENS,
    BytePairs,
    Integers,
    bucket_epoch,
    padded,
    sorted_buckets,
    tensors,
    token_buckets,
)

SetName = Literal["train", "validation", "test"]


class TranslationBatch(NamedTuple):
    """Sentence pairs as an encoder-decoder takes them, padded.

    Attributes:
        source: int64 [B, S], each sentence with its end.
        target: int64 [B, T], the decoder's input: the start, then the sentence.
        labels: int64 [B, T], the expected output: the sentence, then its end.
    """

    source: Tensor
    target: Tensor
    labels: Tensor

    def parts(self, max_tokens: int) -> list[TranslationBatch]:
        """Return the same pairs in batches of the same width, of one pair or at most ``max_tokens`` a side."""
        width = max(self.source.shape[1], self.target.shape[1])
        split = (torch.split(side, max(1, max_tokens // width)) for side in self)
        return [TranslationBatch(*sides) for sides in zip(*split, strict=True)]


class TranslationData:
    """A parallel text in a vocabulary.

    The batches of an epoch are a pure function of (seed, epoch); the global generators are not used.

    Training pairs with an empty side, or one with more than `longest` tokens, its end included, are left out; their
    number is `left_out`, that of the others `train_size`.

    Raises:
        ValueError: no training pair is left.
    """

    def __init__(self, text: ParallelText, vocabulary: BytePairs, *, longest: int | None = None) -> None:
        self.text, self.vocabulary = text, vocabulary
        both = text.train.take([all(pair) for pair in zip(*text.train, strict=True)])
        self._sets: dict[SetName, _Encoded] = {
            "train": _Encoded(both, vocabulary, longest),
            "validation": _Encoded(text.validation, vocabulary),
            "test": _Encoded(text.test, vocabulary),
        }
        self.train_size = len(self._sets["train"].lengths)
        self.left_out = text.size("train") - self.train_size
        if not self.train_size:
            raise ValueError(f"No training pair of {text.name} has both sides within {longest} tokens.")
        self._steps: dict[int, int] = {}

    @cached_property
    def provenance(self) -> str:
        """One line for a table of results: the text's, the vocabulary's size, and what was left out."""
        left = f", {self.left_out} training pairs left out" if self.left_out else ""
        return f"{self.text.provenance}; {self.vocabulary.size} byte pairs{left}"

    def pairs(self, name: SetName) -> Pairs:
        """Return the sentences of a set as text, in the order of the rows; of training, with those left out."""
        pairs: Pairs = getattr(self.text, name)
        return pairs

    def steps_per_epoch(self, max_tokens: int) -> int:
        """Number of training batches in an epoch, the same in each.

        Raises:
            ValueError: a sentence is longer than a batch.
        """
        if max_tokens not in self._steps:
            self._steps[max_tokens] = len(token_buckets(np.sort(self._sets["train"].lengths), max_tokens))
        return self._steps[max_tokens]

    def train_batches(
        self,
        max_tokens: int,
        *,
        seed: int,
        epoch: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[TranslationBatch]:
        """Return the batches of one epoch in random order, with every training pair once.

        B · max(S, T) of a batch is at most ``max_tokens``. Process ``rank`` of ``world_size`` receives its part of
        every batch; parts differ by at most one sentence, and an empty one is a sentence without labels.

        Raises:
            ValueError: a sentence is longer than a batch, the rank does not exist, or seed or epoch is negative.
        """
        check_share(rank, world_size)
        train = self._sets["train"]
        buckets = bucket_epoch(train.lengths, max_tokens, seed=seed, epoch=epoch)
        return (train.part(rows, rank, world_size, device) for rows in buckets)

    def evaluation_batches(
        self, name: SetName, max_tokens: int, *, device: torch.device | str = "cpu"
    ) -> Iterator[tuple[Integers, TranslationBatch]]:
        """Return every pair of a set once, the shortest first, with the rows [B] it has in the set.

        A pair longer than ``max_tokens`` is a batch of its own.
        """
        encoded = self._sets[name]
        return ((rows, encoded.batch(rows, device)) for rows in sorted_buckets(encoded.lengths, max_tokens))


class _Encoded:
    """Sentence pairs as tokens, each sentence with its end, without pairs of a side longer than `longest`.

    Attributes:
        lengths: [N], of the longer side of each pair, which is also that of the decoder's inputs.
    """

    def __init__(self, pairs: Pairs, vocabulary: BytePairs, longest: int | None = None) -> None:
        ended = ([[*tokens, SPECIAL_TOKENS.end] for tokens in vocabulary.encode(side)] for side in pairs)
        both = [pair for pair in zip(*ended, strict=True) if longest is None or max(map(len, pair)) <= longest]
        self.lengths = np.array([max(map(len, pair)) for pair in both], np.int64)
        self._source, self._target = (tensors(pair[side] for pair in both) for side in (0, 1))

    def batch(self, rows: Integers, device: torch.device | str) -> TranslationBatch:
        source, labels = padded(self._source, rows), padded(self._target, rows)
        target = F.pad(labels[:, :-1], (1, 0), value=SPECIAL_TOKENS.start)
        target[target == SPECIAL_TOKENS.end] = SPECIAL_TOKENS.padding
        # Else each batch waits for the work of the device.
        return TranslationBatch(*(tokens.to(device, non_blocking=True) for tokens in (source, target, labels)))

    def part(self, rows: Integers, rank: int, world_size: int, device: torch.device | str) -> TranslationBatch:
        """Return the consecutive part of one process; if it is empty, one sentence without labels."""
        own = np.array_split(rows, world_size)[rank]
        if len(own):
            return self.batch(own, device)
        idle = self.batch(rows[:1], device)
        return idle._replace(labels=torch.full_like(idle.labels, SPECIAL_TOKENS.padding))
