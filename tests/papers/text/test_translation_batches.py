"""Buckets by token count, and what a batch of sentence pairs holds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normless_papers.text.tokens import SPECIAL_TOKENS, bucket_epoch, sorted_buckets
from normless_papers.text.translation_batches import TranslationBatch, TranslationData

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60).map(np.array)


@settings(deadline=None)
@given(LENGTHS, st.integers(30, 200), st.integers(0, 99), st.integers(0, 9))
def test_every_sentence_comes_once_in_batches_within_the_limit(
    lengths: np.ndarray, limit: int, seed: int, epoch: int
) -> None:
    batches = bucket_epoch(lengths, limit, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(len(rows) * lengths[rows].max() <= limit for rows in batches)
    assert len(batches) == len(bucket_epoch(lengths, limit, seed=seed + 1, epoch=epoch + 1))
    again = bucket_epoch(lengths, limit, seed=seed, epoch=epoch)
    assert [rows.tolist() for rows in again] == [rows.tolist() for rows in batches]


def test_a_long_sentence_is_refused_in_training_and_alone_in_evaluation() -> None:
    lengths = np.array([3, 90, 2])
    with pytest.raises(ValueError, match="longest sentence has 90 tokens, and a batch at most 50"):
        bucket_epoch(lengths, 50, seed=0, epoch=0)
    assert [rows.tolist() for rows in sorted_buckets(lengths, 50)] == [[2, 0], [1]]
    for seed, epoch in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="must not be negative"):
            bucket_epoch(lengths, 100, seed=seed, epoch=epoch)


def pairs_of(data: TranslationData, batch: TranslationBatch) -> list[tuple[str, str]]:
    sides = (data.vocabulary.decode(side.tolist()) for side in (batch.source, batch.labels))
    return list(zip(*sides, strict=True))


def test_an_epoch_is_the_text(data: TranslationData) -> None:
    batches = list(data.train_batches(400, seed=0, epoch=0))
    assert len(batches) == data.steps_per_epoch(400)
    found = sorted(pair for batch in batches for pair in pairs_of(data, batch))
    assert found == sorted(zip(data.text.train.source, data.text.train.target, strict=True))
    assert data.train_size == 700
    assert data.left_out == 0


def test_a_batch_is_padded_and_its_target_is_shifted(data: TranslationData) -> None:
    padding, start, end, _ = SPECIAL_TOKENS
    for batch in data.train_batches(400, seed=0, epoch=0):
        assert max(batch.source.numel(), batch.labels.numel()) <= 400
        for side in (batch.source, batch.labels):
            assert side.dtype == torch.int64
            for row in side.tolist():
                length = row.index(end) + 1
                assert set(row[length:]) <= {padding}
                assert padding not in row[:length]
            assert (side[:, -1] == end).any()
        for read, said in zip(batch.target.tolist(), batch.labels.tolist(), strict=True):
            length = said.index(end)
            assert read == [start, *said[:length], *[padding] * (len(said) - length - 1)]


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_every_batch(data: TranslationData, world_size: int) -> None:
    whole = [pairs_of(data, batch) for batch in data.train_batches(400, seed=3, epoch=1)]
    parts = [
        [pairs_of(data, b) for b in data.train_batches(400, seed=3, epoch=1, rank=rank, world_size=world_size)]
        for rank in range(world_size)
    ]
    for step, batch in enumerate(whole):
        assert [pair for part in parts for pair in part[step]] == batch
        sizes = [len(part[step]) for part in parts]
        assert max(sizes) - min(sizes) <= 1


def test_evaluation_gives_every_pair_with_its_row(data: TranslationData) -> None:
    found: dict[int, tuple[str, str]] = {}
    for rows, batch in data.evaluation_batches("test", 200):
        found.update(zip(rows.tolist(), pairs_of(data, batch), strict=True))
    pairs = data.pairs("test")
    assert [found[row] for row in range(30)] == list(zip(pairs.source, pairs.target, strict=True))
