"""The embedded opinions: their classes by another reading of the sentences, no repetition, nothing told by words."""

from __future__ import annotations

from normless_papers.text.sentiment import ADJECTIVES, VERBS, sentiment

SIGN = {word: sign for pair in (*ADJECTIVES, *VERBS) for sign, word in zip((-1, 1), pair, strict=True)}
TURNS = ("not", "never", "hardly", "anything but", "far from", "by no means", "wrongly say", "falsely say")


def sign_of(clause: str) -> int:
    """That of its one word of opinion, turned by each denial."""
    (word,) = [word for word in clause.split() if word in SIGN]
    turns = sum(f" {turn} " in f" {clause} " for turn in TURNS)
    return SIGN[word] * (1 - 2 * (turns % 2))


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


def test_classes_are_what_the_sentences_say_and_test_sentences_are_new_but_not_their_words() -> None:
    text = sentiment(train=600, test=100)
    assert text.classes == ("negative", "positive")
    for part in (text.train, text.test):
        assert [2 * label - 1 for label in part.labels] == [read(sentence) for sentence in part.sentences]
        assert abs(sum(part.labels) / len(part.labels) - 0.5) < 0.01
    assert len({*text.train.sentences, *text.test.sentences}) == 700
    words = {word for sentence in text.train.sentences for word in sentence.split()}
    assert all(words.issuperset(sentence.split()) for sentence in text.test.sentences)
