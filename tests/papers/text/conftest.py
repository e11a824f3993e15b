"""Sentences of the grammar as tokens."""

from __future__ import annotations

import pytest

from normless_lab.data import load_data
from normless_papers.text import BytePairs, ParallelText, TranslationData


@pytest.fixture(scope="session")
def data() -> TranslationData:
    text = load_data("grammar(train=700, validation=20, test=30)", kind=ParallelText)
    return TranslationData(text, BytePairs.train((*text.train.source, *text.train.target), 300))
