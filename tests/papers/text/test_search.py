"""Beam search against plain loops and without the cache."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from text_helpers import DECODED, END, PADDING, UNKNOWN, HashedLanguage, Uncached
from torch import Tensor

from normless_papers.text.translating import beam_search

SOURCES = st.lists(st.lists(st.integers(UNKNOWN, 5), max_size=2), min_size=1, max_size=4)
PENALTIES = st.sampled_from([0.0, 0.6, 1.0, 3.0])


def padded(sources: list[list[int]]) -> Tensor:
    ended = [[*source, END] for source in sources]
    width = max(map(len, ended))
    return torch.tensor([row + [PADDING] * (width - len(row)) for row in ended])


def penalty_of(length: int, strength: float) -> float:
    return float(((5.0 + length) ** strength) / (6.0**strength))


def plain_beam(
    model: HashedLanguage, source: list[int], limit: int, width: int, strength: float
) -> tuple[list[int], float]:
    """One sentence and its score, with lists."""
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for length in range(limit + 1):
        candidates = []
        for total, prefix in alive:
            values = model.log_probabilities(source, prefix)
            allowed = [END] if length == limit else range(END, len(values))
            candidates += [(total + values[token], (*prefix, token)) for token in allowed]
        candidates.sort(reverse=True)
        finished += [
            (total / penalty_of(length + 1, strength), sentence[:-1])
            for total, sentence in candidates[:width]
            if sentence[-1] == END
        ]
        alive = [candidate for candidate in candidates[: 2 * width] if candidate[1][-1] != END][:width]
        if len(finished) >= width:
            break
    score, tokens = max(finished)
    return list(tokens), score


@settings(deadline=None)
@given(SOURCES, st.integers(0, 10**6), st.integers(1, 6), PENALTIES, st.sampled_from([0.0, 1.0, 2.0]))
def test_beams_are_those_of_a_plain_loop(
    sources: list[list[int]], seed: int, width: int, strength: float, ending: float
) -> None:
    model = HashedLanguage(7, seed, ending=ending)
    hypotheses = beam_search(model, padded(sources), width=width, penalty=strength, longer_by=6)
    expected = [plain_beam(model, [*source, END], len(source) + 7, width, strength) for source in sources]
    for hypothesis, (tokens, score) in zip(hypotheses, expected, strict=True):
        assert hypothesis.tokens == tokens
        assert hypothesis.score == pytest.approx(score)


@settings(deadline=None)
@given(SOURCES, st.integers(0, 10**6), st.integers(1, 5))
def test_the_cache_changes_nothing_but_the_work(sources: list[list[int]], seed: int, width: int) -> None:
    model, source = HashedLanguage(6, seed), padded(sources)
    DECODED.clear()
    cached = beam_search(model, source, width=width, longer_by=4)
    assert set(DECODED) == {1}
    DECODED.clear()
    assert beam_search(Uncached(model), source, width=width, longer_by=4) == cached
    assert list(range(1, len(DECODED) + 1)) == DECODED
