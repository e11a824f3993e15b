"""What a trained encoder-decoder says: greedy and beam search, and how near it is to a reference."""

from __future__ import annotations

from normless.decoding.beam import beam_search, length_penalty
from normless.decoding.bleu import Bleu, bleu
from normless.decoding.greedy import greedy_search
from normless.decoding.hypothesis import Hypothesis
from normless.decoding.translate import translate

__all__ = ["Bleu", "Hypothesis", "beam_search", "bleu", "greedy_search", "length_penalty", "translate"]
