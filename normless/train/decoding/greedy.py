"""Greedy search: always the most probable token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normless.data import SPECIAL_TOKENS
from normless.lifting import evaluating
from normless.train.decoding.prefixes import Hypothesis, Prefixes, length_limits, only_end


def greedy_search(
    network: nn.Module, source: Tensor, *, longer_by: int = 50, use_cache: bool = True
) -> list[Hypothesis]:
    """Append the most probable token until it is the end, for all sentences, in eval mode without gradients.

    Arguments and errors are those of `beam_search`; 50 for `longer_by` is of Vaswani et al. (2017, section 6.1).

    Returns:
        One hypothesis for each of the B sentences, scored by its log probability. A NaN logit ends a sentence, with
        log probability −∞.
    """
    hypotheses: dict[int, Hypothesis] = {}
    with evaluating(network):
        prefixes = Prefixes(network, source, use_cache=use_cache)
        rows = torch.arange(len(source), device=source.device)
        limits = length_limits(source, longer_by)
        total = torch.zeros(len(source), device=source.device, dtype=torch.float64)
        while len(rows):
            following = only_end(prefixes.next_log_probabilities(), prefixes.tokens.shape[1] > limits)
            best, tokens = following.max(1)
            total = total + best
            ends = (tokens == SPECIAL_TOKENS.end) | (best == -torch.inf)
            for row, sentence, value in zip(
                rows[ends].tolist(), prefixes.tokens[ends, 1:].tolist(), total[ends].tolist(), strict=True
            ):
                hypotheses[row] = Hypothesis(sentence, value, value)
            going = (~ends).nonzero()[:, 0]
            prefixes.keep(going)
            prefixes.append(tokens[going])
            rows, limits, total = rows[going], limits[going], total[going]
    return [hypotheses[row] for row in range(len(source))]
