"""The embedded opinions: their classes by another reading of the sentences, no repetition, nothing told by words."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normless_lab.data.sources import load_labelled_text
from normless_lab.data.text.sentiment import ADJECTIVES, VERBS, sentiment
from normless_lab.data.text_sets import LabelledText

SIGN = {word: sign for pair in (*ADJECTIVES, *VERBS) for sign, word in zip((-1, 1), pair, strict=True)}
TURNS = ("not", "never", "hardly", "anything but", "far from", "by no means", "wrongly say", "falsely say")


def drawn(**sizes: int) -> LabelledText:
    return sentiment(**sizes)


def sign_of(clause: str) -> int:
    """That of its one word of opinion, turned by each denial."""
    (word,) = [word for word in clause.split() if word in SIGN]
    turns = sum(f" {turn} " in f" {clause} " for turn in TURNS)
    return SIGN[word] * (-1) ** turns


def read(sentence: str) -> int:
    """The opinion of a sentence: of the clause that is not granted."""
    clauses = sentence.split(" , ")
    if len(clauses) == 1:
        return sign_of(sentence)
    first, second = clauses
    if first.startswith("although "):
        assert sign_of(first) == -sign_of(second)
        return sign_of(second)
    if second.startswith("although "):
        assert sign_of(second) == -sign_of(first)
        return sign_of(first)
    assert sign_of(first) == (-sign_of(second) if second.startswith("but ") else sign_of(second))
    return sign_of(second)


def test_classes_are_what_the_sentences_say() -> None:
    text = drawn(train=600, test=100)
    assert text.classes == ("negative", "positive")
    for part in (text.train, text.test):
        assert [2 * label - 1 for label in part.labels] == [read(sentence) for sentence in part.sentences]
        assert abs(sum(part.labels) / part.size - 0.5) < 0.01


def test_test_sentences_are_new_but_not_their_words() -> None:
    text = drawn(train=600, test=100)
    together = text.train.sentences + text.test.sentences
    assert len(set(together)) == 700
    words = {word for sentence in text.train.sentences for word in sentence.split()}
    assert all(words.issuperset(sentence.split()) for sentence in text.test.sentences)


def test_words_alone_tell_little() -> None:
    """A classifier that counts words in favour of a class gets well below what the sentences say."""
    text = drawn()
    counts = {label: Counter[str]() for label in (0, 1)}
    for sentence, label in zip(text.train.sentences, text.train.labels, strict=True):
        counts[label].update(sentence.split())
    share = {word: counts[1][word] / (counts[0][word] + counts[1][word]) - 0.5 for word in counts[0] | counts[1]}
    guesses = [sum(share[word] for word in sentence.split()) > 0 for sentence in text.test.sentences]
    right = sum(guess == bool(label) for guess, label in zip(guesses, text.test.labels, strict=True))
    assert right / text.test.size < 0.7


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.integers(300, 500), st.integers(2, 20))
def test_the_same_seed_draws_the_same(seed: int, train: int, test: int) -> None:
    one, other = drawn(train=train, test=test, seed=seed), drawn(train=train, test=test, seed=seed)
    assert one == other
    assert (one.train.size, one.test.size) == (train, test)
    assert one.checksum != drawn(train=train, test=test, seed=seed + 1).checksum


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="two sentences or more in each set, got train=1, test=500"):
        load_labelled_text("sentiment(train=1)")
    with pytest.raises(ValueError, match="too few words to make other sentences of; increase"):
        load_labelled_text("sentiment(train=2, test=5000)")
    with pytest.raises(ValueError, match="draws at most 1,000,000 examples, but 100,000,000,500 are asked for"):
        load_labelled_text("sentiment(train=100000000000)")
    with pytest.raises(ValueError, match="The data set sentiment has no option trian; its options are train, test"):
        load_labelled_text("sentiment(trian=100)")


def test_a_subset_is_the_beginning() -> None:
    text = drawn(train=400, test=100)
    fewer = text.subset(train=30)
    assert fewer.train.sentences == text.train.sentences[:30]
    assert fewer.test == text.test
    assert "the first 30 of 400 train" in fewer.provenance
    with pytest.raises(ValueError, match="A subset of sentiment has 1 to 100 test sentences, not 101"):
        text.subset(test=101)
