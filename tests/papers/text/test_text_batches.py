"""Sentences as batches of tokens: every one once, with its class or translation, padded to the longest."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from normless_lab.data import load_data
from normless_lab.data._image_data import Batch
from normless_papers.text.text_sets import LabelledSentences, LabelledText, ParallelText
from normless_papers.text.text_task import TextData
from normless_papers.text.tokens import SPECIAL_TOKENS, BytePairs, bucket_epoch
from normless_papers.text.translation_batches import TranslationBatch, TranslationData

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60).map(np.array)
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=30)
Seen = list[tuple[tuple[int, ...], int]]


class Letters:
    """A token for each letter, between 1 and 2; padding is 9, as a checkpoint may have it."""

    size, padding, name = 40, 9, "letters"

    def encode(self, sentences: list[str], longest: int) -> list[list[int]]:
        return [[1, *(ord(letter) - 87 for letter in text[: longest - 2]), 2] for text in sentences]


def made(sizes: list[int]) -> TextData:
    """Sentences of these lengths, which name themselves by their letters; classes by turns."""
    texts = tuple(chr(97 + number % 26) * size for number, size in enumerate(sizes))
    part = LabelledSentences(texts, tuple(number % 3 for number in range(len(sizes))))
    return TextData(LabelledText("letters", "made", ("a", "b", "c"), part, part), Letters(), longest=100)


def seen(batches: list[Batch]) -> Seen:
    """Tokens without padding, and class, of every sentence in order."""
    rows = [(row, int(label)) for batch in batches for row, label in zip(batch.inputs, batch.targets, strict=True)]
    return [(tuple(row[row != 9].tolist()), label) for row, label in rows]


def expected(data: TextData) -> Seen:
    train = data.text.train
    tokens = data.tokens.encode(train.sentences, 100)
    return [(tuple(item), label) for item, label in zip(tokens, train.labels, strict=True)]


@given(SIZES, st.integers(1, 12), st.integers(0, 3))
def test_an_epoch_has_whole_batches_and_an_evaluation_every_sentence(
    sizes: list[int], batch_size: int, epoch: int
) -> None:
    data = made(sizes)
    batches = list(data.train_batches(batch_size, seed=3, epoch=epoch))
    assert len(batches) == data.steps_per_epoch(batch_size) == max(1, len(sizes) // batch_size)
    assert {len(batch.inputs) for batch in batches} == {min(batch_size, len(sizes))}
    whole = expected(data)
    for item in seen(batches):
        whole.remove(item)
    for batch in batches:
        assert bool((batch.inputs[:, -1] == 2).any()), "a batch is no wider than its longest sentence"
    assert sorted(seen(list(data.test_batches(batch_size)))) == sorted(expected(data))


@settings(deadline=None)
@given(LENGTHS, st.integers(30, 200), st.integers(0, 99), st.integers(0, 9))
def test_every_pair_comes_once_in_batches_within_the_limit(
    lengths: np.ndarray, limit: int, seed: int, epoch: int
) -> None:
    batches = bucket_epoch(lengths, limit, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(len(rows) * lengths[rows].max() <= limit for rows in batches)
    again = bucket_epoch(lengths, limit, seed=seed, epoch=epoch)
    assert [rows.tolist() for rows in again] == [rows.tolist() for rows in batches]


def pairs_of(data: TranslationData, batch: TranslationBatch) -> list[tuple[str, str]]:
    sides = (data.vocabulary.decode(side.tolist()) for side in (batch.source, batch.labels))
    return list(zip(*sides, strict=True))


def test_an_epoch_is_the_text_padded_and_its_target_is_shifted() -> None:
    text = load_data("grammar(train=700, validation=20, test=30)", kind=ParallelText)
    data = TranslationData(text, BytePairs.train((*text.train.source, *text.train.target), 300))
    padding, start, end, _ = SPECIAL_TOKENS
    batches = list(data.train_batches(400, seed=0, epoch=0))
    assert len(batches) == data.steps_per_epoch(400)
    found = sorted(pair for batch in batches for pair in pairs_of(data, batch))
    assert found == sorted(zip(data.text.train.source, data.text.train.target, strict=True))
    assert (data.train_size, data.left_out) == (700, 0)
    for batch in batches:
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
