"""Byte pairs against merging by hand, and text that comes back."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from normless.errors import DataFormatError
from normless_papers.text.tokens import SPECIAL_TOKENS, BytePairs

TEXTS = ["low low low low low", "lower lower", "newest newest newest newest newest newest", "widest widest widest"]
ALPHABET = "".join(sorted({character for text in TEXTS for character in text}))


def apply(pair: tuple[str, str], word: tuple[str, ...]) -> tuple[str, ...]:
    pieces: list[str] = []
    for piece in word:
        if pieces and (pieces[-1], piece) == pair:
            pieces[-1] += piece
        else:
            pieces.append(piece)
    return tuple(pieces)


def test_merges_are_those_of_the_algorithm() -> None:
    texts = ["ab ab ab ab ab ab abc abc abc abcd abcd"]
    words = Counter(tuple(f"Ġ{word}") for word in texts[0].split())
    expected = []
    for _ in range(3):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        (pair, count), *rest = pairs.most_common()
        ties = {pair, *(other for other, times in rest if times == count)}
        learned = json.loads(BytePairs.train(texts, 4 + 5 + len(expected) + 1).to_json())["model"]["merges"]
        assert learned[: len(expected)] == expected
        assert tuple(learned[-1]) in ties
        expected.append(learned[-1])
        words = Counter({apply(tuple(learned[-1]), word): count for word, count in words.items()})
    encoded = BytePairs.train(texts, 12).encode(["ab"])
    assert len(encoded[0]) == 1


@settings(deadline=None)
@given(st.text(ALPHABET))
def test_text_of_known_bytes_comes_back(text: str) -> None:
    vocabulary = BytePairs.train(TEXTS, 40)
    (tokens,) = vocabulary.encode([text])
    assert vocabulary.decode([tokens]) == [text.strip()]
    assert all(len(SPECIAL_TOKENS) <= token < vocabulary.size <= 40 for token in tokens)


def test_a_saved_vocabulary_is_the_same(tmp_path: Path) -> None:
    vocabulary = BytePairs.train(TEXTS, 30)
    path = tmp_path / "vocabulary.json"
    vocabulary.save(path)
    loaded = BytePairs.load(path)
    texts = [*TEXTS, "newer </s>"]
    assert loaded.encode(texts) == vocabulary.encode(texts)
    assert (loaded.to_json(), loaded.size) == (vocabulary.to_json(), vocabulary.size)
    path.write_bytes(b"{}")
    with pytest.raises(DataFormatError, match=r"vocabulary\.json is not a vocabulary of byte pairs"):
        BytePairs.load(path)
