"""Labelled sentences as batches of tokens: every sentence once, with its class, padded to the longest."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from normless_lab.data.images.image_data import Batch
from normless_papers.text.byte_pairs import BytePairs
from normless_papers.text.sentiment import sentiment
from normless_papers.text.text_batches import LearnedTokens, TextData
from normless_papers.text.text_sets import LabelledSentences, LabelledText


class Letters:
    """A token for each letter, between 1 and 2; padding is 9, as a checkpoint may have it."""

    size, padding, name = 40, 9, "letters"

    def encode(self, sentences: list[str], longest: int) -> list[list[int]]:
        return [[1, *(ord(letter) - 87 for letter in text[: longest - 2]), 2] for text in sentences]


def made(sizes: list[int], longest: int = 100) -> TextData:
    """Sentences of these lengths, which name themselves by their letters; classes by turns."""
    texts = tuple(chr(97 + number % 26) * size for number, size in enumerate(sizes))
    part = LabelledSentences(texts, tuple(number % 3 for number in range(len(sizes))))
    text = LabelledText("letters", "made", ("a", "b", "c"), part, part)
    return TextData(text, Letters(), longest=longest)


def seen(batches: list[Batch]) -> list[tuple[tuple[int, ...], int]]:
    """Tokens without padding, and class, of every sentence in order."""
    rows = [(row, int(label)) for batch in batches for row, label in zip(batch.inputs, batch.targets, strict=True)]
    return [(tuple(row[row != 9].tolist()), label) for row, label in rows]


def expected(data: TextData) -> list[tuple[tuple[int, ...], int]]:
    train = data.text.train
    tokens = data.tokens.encode(train.sentences, 100)
    return [(tuple(item), label) for item, label in zip(tokens, train.labels, strict=True)]


sizes_of = st.lists(st.integers(1, 9), min_size=1, max_size=30)


@given(sizes_of, st.integers(1, 12), st.integers(0, 3))
def test_an_epoch_has_whole_batches_of_different_sentences(sizes: list[int], batch_size: int, epoch: int) -> None:
    data = made(sizes)
    batches = list(data.train_batches(batch_size, seed=3, epoch=epoch))
    assert len(batches) == data.steps_per_epoch(batch_size) == max(1, len(sizes) // batch_size)
    assert {len(batch.inputs) for batch in batches} == {min(batch_size, len(sizes))}
    whole = expected(data)
    for item in seen(batches):
        whole.remove(item)
    for batch in batches:
        assert batch.inputs.dtype == batch.targets.dtype == torch.int64
        assert bool((batch.inputs[:, -1] == 2).any()), "a batch is no wider than its longest sentence"
        assert bool((batch.inputs[:, 0] == 1).all())


@given(sizes_of, st.integers(1, 12))
def test_an_evaluation_has_every_sentence_once(sizes: list[int], batch_size: int) -> None:
    data = made(sizes)
    batches = list(data.test_batches(batch_size))
    assert sorted(seen(batches)) == sorted(expected(data))
    assert data.test_labels.tolist() == list(data.text.test.labels)
    widths = [batch.inputs.shape[1] for batch in batches]
    assert widths == sorted(widths)


@given(sizes_of, st.integers(1, 3))
def test_processes_share_a_batch(sizes: list[int], world_size: int) -> None:
    data = made(sizes * world_size)
    batch_size = world_size * 2 if len(sizes) > 1 else world_size
    parts = [
        list(data.train_batches(batch_size, seed=0, epoch=1, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    joined = [item for step in zip(*parts, strict=True) for item in seen(list(step))]
    assert joined == seen(list(data.train_batches(batch_size, seed=0, epoch=1)))
    tested = [list(data.test_batches(5, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert sorted(item for part in tested for item in seen(part)) == sorted(expected(data))


def test_learned_tokens_lie_between_a_start_and_an_end() -> None:
    text = sentiment(train=400, test=50)
    pieces = BytePairs.train(text.train.sentences, 400)
    tokens = LearnedTokens(pieces)
    for sentence, encoded in zip(text.test.sentences, tokens.encode(text.test.sentences, 100), strict=True):
        assert (encoded[0], encoded[-1]) == (1, 2)
        assert pieces.decode([encoded]) == [sentence]
    assert [len(item) for item in tokens.encode(text.test.sentences, 4)] == [4] * 50
    assert tokens.padding == 0
