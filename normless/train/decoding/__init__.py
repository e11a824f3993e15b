"""Translations of a trained encoder-decoder: greedy and beam search, and BLEU."""

from __future__ import annotations

from normless.train.decoding.search import Hypothesis, beam_search, greedy_search, length_penalty
from normless.train.decoding.translate import Bleu, bleu, translate

__all__ = ["Bleu", "Hypothesis", "beam_search", "bleu", "greedy_search", "length_penalty", "translate"]
