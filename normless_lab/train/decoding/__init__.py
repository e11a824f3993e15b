"""Translations of a trained encoder-decoder: greedy and beam search, and BLEU."""

from __future__ import annotations

from normless_lab.train.decoding.search import Hypothesis, beam_search, greedy_search, length_penalty
from normless_lab.train.decoding.translate import Bleu, bleu, translate

__all__ = ["Bleu", "Hypothesis", "beam_search", "bleu", "greedy_search", "length_penalty", "translate"]
