"""Beam search against exhaustive search, plain loops, and without the cache; BLEU by its definition."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from text_helpers import END, PADDING, START, UNKNOWN, HashedLanguage, Uncached
from torch import Tensor

import normless as nl
from normless.models import transformer
from normless_papers.text import bleu
from normless_papers.text.search import beam_search

Norm = Literal["pre", "post"]


SOURCES = st.lists(st.lists(st.integers(UNKNOWN, 5), max_size=2), min_size=1, max_size=4)


PENALTIES = st.sampled_from([0.0, 0.6, 1.0, 3.0])


def padded(sources: list[list[int]]) -> Tensor:
    ended = [[*source, END] for source in sources]
    width = max(map(len, ended))
    return torch.tensor([row + [PADDING] * (width - len(row)) for row in ended])


def penalty_of(length: int, strength: float) -> float:
    return float(((5.0 + length) ** strength) / (6.0**strength))


def plain_beam(model: HashedLanguage, source: list[int], limit: int, width: int, strength: float) -> list[int]:
    """One sentence, with lists."""
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
    return list(max(finished)[1])


@settings(deadline=None)
@given(SOURCES, st.integers(0, 10**6), st.integers(1, 6), PENALTIES, st.sampled_from([0.0, 1.0, 2.0]))
def test_beams_are_those_of_a_plain_loop(
    sources: list[list[int]], seed: int, width: int, strength: float, ending: float
) -> None:
    model = HashedLanguage(7, seed, ending=ending)
    hypotheses = beam_search(model, padded(sources), width=width, penalty=strength, longer_by=6)
    expected = [plain_beam(model, [*source, END], len(source) + 7, width, strength) for source in sources]
    assert [hypothesis.tokens for hypothesis in hypotheses] == expected


@settings(deadline=None)
@given(SOURCES, st.integers(0, 10**6), st.integers(1, 5))
def test_the_cache_changes_nothing_but_the_work(sources: list[list[int]], seed: int, width: int) -> None:
    model, source = HashedLanguage(6, seed), padded(sources)
    cached = beam_search(model, source, width=width, longer_by=4)
    assert set(model.decoded) == {1}
    model.decoded.clear()
    assert beam_search(Uncached(model), source, width=width, longer_by=4) == cached
    assert model.decoded == list(range(1, len(model.decoded) + 1))


@pytest.mark.parametrize(
    ("scheme", "norm", "width"), [("as_written", "pre", 1), ("fixup", "pre", 4), ("deepnorm", "post", 4)]
)
def test_a_transformer_decodes_the_same_with_and_without_its_cache(scheme: str, norm: Norm, width: int) -> None:
    network = nl.convert(transformer(13, 2, 16, 2, 32, norm, 0.0, 1), scheme).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    source = padded([[5, 6, 7, 8], [9], [12, 4, 5]])
    cached, anew = (
        beam_search(net, source, width=width, penalty=0.0, longer_by=6) for net in (network, Uncached(network))
    )
    assert [found.tokens for found in cached] == [found.tokens for found in anew]
    for row, hypothesis, other in zip(source, cached, anew, strict=True):
        tokens = torch.tensor([[START, *hypothesis.tokens, END]])
        logits = network(row[None, row != PADDING], tokens[:, :-1]).log_softmax(-1)
        total = logits.gather(2, tokens[:, 1:, None]).sum().item()
        assert hypothesis.log_probability == pytest.approx(total, rel=1e-6)
        assert other.score == pytest.approx(hypothesis.score, rel=1e-6)


def grams(words: list[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def test_bleu_is_its_definition() -> None:
    outputs = ["the cat sat on the red mat today", "a dog sees the old king and sings"]
    meant = ["the cat sat on the mat today", "a dog sees the old queen and a bird sings"]
    precisions = []
    for n in (1, 2, 3, 4):
        pairs = [
            (grams(output.split(), n), grams(reference.split(), n))
            for output, reference in zip(outputs, meant, strict=True)
        ]
        right = sum((output & reference).total() for output, reference in pairs)
        precisions.append(right / sum(output.total() for output, _ in pairs))
    length, wanted = (sum(len(sentence.split()) for sentence in side) for side in (outputs, meant))
    brevity = min(1.0, math.exp(1 - wanted / length))
    expected = 100 * brevity * math.exp(sum(map(math.log, precisions)) / 4)
    result = bleu(outputs, meant)
    assert result.score == pytest.approx(expected)
