"""Translations of a trained encoder-decoder: greedy and beam search, and BLEU."""

from __future__ import annotations

from normless.train.decoding.beam import beam_search, length_penalty
from normless.train.decoding.bleu import Bleu, bleu
from normless.train.decoding.greedy import greedy_search
from normless.train.decoding.prefixes import Hypothesis
from normless.train.decoding.translate import translate

__all__ = ["Bleu", "Hypothesis", "beam_search", "bleu", "greedy_search", "length_penalty", "translate"]
