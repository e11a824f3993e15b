"""Whole sets translated, and BLEU by its definition."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from decoding_helpers import Copying

from normless_papers.text import TranslationData, bleu, translate


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("max_tokens", [1, 300, 10_000])
def test_translations_come_in_the_sets_order(data: TranslationData, width: int, max_tokens: int) -> None:
    result = translate(Copying(data.vocabulary.size), data, "test", width=width, max_tokens=max_tokens)
    assert result == list(data.pairs("test").source)


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
    assert result.precisions == pytest.approx([100 * precision for precision in precisions])
    assert result.brevity_penalty == pytest.approx(brevity)


def test_a_perfect_translation_scores_100_with_its_signature() -> None:
    sentences = ["Der Hund, den die Frau sieht, liebt eine Katze .", "Ein König singt jetzt hier ."] * 60
    result = bleu(sentences, sentences)
    assert result.score == 100.0
    assert result.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert str(result) == f"BLEU 100.0 ({result.signature})"
    assert bleu(["", ""], ["Ein Hund", "Zwei"]).score == 0.0
