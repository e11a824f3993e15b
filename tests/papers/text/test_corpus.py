"""The embedded corpus: its sets are those of saved runs, do not repeat, and hold no new words out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from normless_lab.data import load_data
from normless_papers.text.corpus import sentiment
from normless_papers.text.text_sets import LabelledText, ParallelText


@pytest.mark.parametrize(
    ("data", "kind", "checksum"),
    [
        # Of the runs in docs/reproduction/runs.parquet.
        ("grammar(train=600, validation=10, test=50)", ParallelText, "e78b472ad097d047"),
        ("grammar(train=2000, validation=20, test=60)", ParallelText, "a0df21e647abbb4a"),
        ("sentiment(train=4000, test=2000)", LabelledText, "781b210413ff24d7"),
    ],
)
def test_the_sets_are_those_of_saved_runs(data: str, kind: type, checksum: str) -> None:
    assert load_data(data, kind=kind).checksum.startswith(checksum)


def assert_held_out(*parts: Sequence[str]) -> None:
    """No sentence repeats, and all words occur in the first part."""
    every = [sentence for part in parts for sentence in part]
    assert len(set(every)) == len(every)
    words = {word for sentence in parts[0] for word in sentence.split()}
    assert all(words.issuperset(sentence.split()) for sentence in every)


def test_held_out_sentences_are_new_and_their_words_are_not() -> None:
    text = load_data("grammar", kind=ParallelText)
    sets = (text.train, text.validation, text.test)
    assert [len(pairs.source) for pairs in sets] == [6000, 300, 300]
    for side in ("source", "target"):
        assert_held_out(*(getattr(pairs, side) for pairs in sets))
    opinions = sentiment(train=600, test=100)
    assert_held_out(opinions.train.sentences, opinions.test.sentences)
    assert opinions.train.labels[:4] == (0, 1, 0, 1)


def test_more_than_the_corpus_has_is_refused() -> None:
    with pytest.raises(ValueError, match="too few sentences"):
        load_data("grammar(train=100000)", kind=ParallelText)
