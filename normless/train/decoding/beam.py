"""Beam search (Wu et al. 2016, section 7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normless.data import SPECIAL_TOKENS
from normless.lifting import evaluating
from normless.train.decoding.prefixes import Hypothesis, Prefixes, length_limits, only_end


def length_penalty(length: int, strength: float) -> float:
    """((5 + length) / 6)^strength, by which a log probability is divided (Wu et al. 2016, Eq. 14).

    ``length`` counts the end token: an empty sentence has length 1 and penalty 1.
    """
    return float(((5 + length) / 6) ** strength)


def beam_search(
    network: nn.Module,
    source: Tensor,
    *,
    width: int = 4,
    penalty: float = 0.6,
    longer_by: int = 50,
    use_cache: bool = True,
) -> list[Hypothesis]:
    """Search for the target sentences of the highest score, all at once, in eval mode without gradients.

    Each sentence keeps the `width` most probable continuations of its prefixes; those that end are finished. The best
    is returned once `width` have finished, none of the others can become better, or the length limit is reached.

    Args:
        network: with ``encode`` and ``decode``, see `normless.train.decoding.prefixes.EncoderDecoder`.
        source: int64 [B, S], padded.
        width: prefixes of each sentence.
        penalty: strength α of `length_penalty`, 0 for none. Vaswani et al. (2017, section 6.1) take 4 and 0.6.
        longer_by: largest number of tokens by which a translation may exceed its source.
        use_cache: decode each token once, with the network's cache, which is reordered with the beam.

    Returns:
        The best hypothesis of each of the B sentences; empty, with log probability −∞, where the logits are NaN.

    Raises:
        TypeError: the network cannot encode and decode.
        ValueError: the width is below 1, or the penalty or `longer_by` negative.
    """
    if width < 1:
        raise ValueError(f"A beam is at least 1 wide, got width={width}.")
    if not penalty >= 0:
        raise ValueError(f"The length penalty has a strength of 0 or more, got {penalty}.")
    limits = length_limits(source, longer_by)
    with evaluating(network):
        prefixes = Prefixes(network, source, use_cache=use_cache)
        search = _Search(prefixes, width=width, penalty=penalty, limits=limits)
        while len(search.rows):
            search.step()
    return [finished.best for finished in search.finished]


@dataclass
class _Finished:
    """The number of finished hypotheses of a sentence, and the best of them."""

    best: Hypothesis
    count: int = 0

    def add(self, hypothesis: Hypothesis) -> None:
        self.count += 1
        if hypothesis.score > self.best.score:
            self.best = hypothesis


class _Search:
    """The beams of the undecided sentences.

    Attributes:
        rows: [B] indices of the sentences.
        beams: [B, K] log probability of each prefix, −∞ for an unused one.
        finished: hypotheses of every sentence.
    """

    def __init__(self, prefixes: Prefixes, *, width: int, penalty: float, limits: Tensor) -> None:
        self._prefixes = prefixes
        self._width = width
        self._penalty = penalty
        self._limits = limits
        self.rows = torch.arange(len(limits), device=limits.device)
        nothing = Hypothesis([], -torch.inf, -torch.inf)
        self.finished = [_Finished(nothing) for _ in range(len(limits))]
        prefixes.keep(self.rows.repeat_interleave(width))
        # All prefixes of a sentence start equal, so only one of them counts.
        self.beams = torch.full((len(limits), width), -torch.inf, device=limits.device)
        self.beams[:, 0] = 0.0

    def step(self) -> None:
        """Append one token to every prefix, and drop the decided sentences."""
        sentences, width = self.beams.shape
        following = self._prefixes.next_log_probabilities()
        at_limit = self._prefixes.tokens.shape[1] > self._limits
        following = only_end(following, at_limit.repeat_interleave(width))
        vocabulary = following.shape[1]
        candidates = (self.beams[:, :, None] + following.view(sentences, width, vocabulary)).flatten(1)
        # At most `width` candidates end, one for each prefix, so twice as many contain `width` that go on.
        values, places = candidates.topk(min(2 * width, candidates.shape[1]), dim=1)
        beams, tokens = places // vocabulary, places % vocabulary
        ends = tokens == SPECIAL_TOKENS.end
        self._finish(values[:, :width], beams[:, :width], ends[:, :width])

        self.beams, selected = values.masked_fill(ends, -torch.inf).topk(width, dim=1)
        going = (~self._decided(at_limit)).nonzero()[:, 0]
        first = torch.arange(sentences, device=going.device)[:, None] * width
        self._prefixes.keep((first + beams.gather(1, selected))[going].flatten())
        self._prefixes.append(tokens.gather(1, selected)[going].flatten())
        self.rows, self.beams, self._limits = self.rows[going], self.beams[going], self._limits[going]

    def _finish(self, values: Tensor, beams: Tensor, ends: Tensor) -> None:
        """Record the candidates [B, K] that ended, by log probability and prefix."""
        chosen = (ends & (values > -torch.inf)).nonzero()
        if not len(chosen):
            return
        sentence, rank = chosen.unbind(1)
        prefix = sentence * self.beams.shape[1] + beams[sentence, rank]
        length = self._prefixes.tokens.shape[1]
        for row, tokens, value in zip(
            self.rows[sentence].tolist(),
            self._prefixes.tokens[prefix, 1:].tolist(),
            values[sentence, rank].tolist(),
            strict=True,
        ):
            score = value / length_penalty(length, self._penalty)
            self.finished[row].add(Hypothesis(tokens, value, score))

    def _decided(self, at_limit: Tensor) -> Tensor:
        """Which of the sentences [B] have their best hypothesis for certain, or `width` of them."""
        done = [self.finished[row] for row in self.rows.tolist()]
        best = self.beams.new_tensor([finished.best.score for finished in done])
        enough = torch.tensor([finished.count >= self._width for finished in done], device=best.device)
        # A log probability only falls, and no penalty exceeds that of the greatest length with its end.
        longest = [length_penalty(limit + 1, self._penalty) for limit in self._limits.tolist()]
        reachable = self.beams[:, 0] / self.beams.new_tensor(longest)
        return at_limit | enough | (best >= reachable)
