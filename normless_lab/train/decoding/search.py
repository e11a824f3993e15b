"""Greedy and beam search for the target sentences of an encoder-decoder."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from normless.probes import running
from normless_lab.data import SPECIAL_TOKENS


class Hypothesis(NamedTuple):
    """A finished target sentence.

    Attributes:
        tokens: without start and end.
        log_probability: Σ log p (nats) of its tokens and of the end, each given those before it and the source.
        score: by which the search ranks: the log probability, divided by the length penalty if any.
    """

    tokens: list[int]
    log_probability: float
    score: float


class EncoderDecoder(Protocol):
    """A network that encodes the source once and decodes the target token by token.

    Memory and cache are tensors with the batch first, in any nesting of tuples, lists and dictionaries.
    """

    def encode(self, source: Tensor) -> Any:
        """The memory of source [B, S]."""

    def decode(self, tokens: Tensor, memory: Any, cache: Any = None) -> tuple[Tensor, Any]:
        """Logits [B, T, vocabulary] of tokens [B, T] that follow those in the cache, and the extended cache."""


class Prefixes:
    """N prefixes of target sentences, initially the start token of each of N sources [N, S].

    The cache decodes the last token alone.

    Attributes:
        tokens: [N, T], with the start.
        limits: [N] largest numbers of tokens of the translations, without start and end.
    """

    def __init__(self, network: nn.Module, source: Tensor, longer_by: int, *, use_cache: bool) -> None:
        if longer_by < 0:
            raise ValueError(f"A translation may be longer than its source by 0 or more tokens, not by {longer_by}.")
        if not (callable(getattr(network, "encode", None)) and callable(getattr(network, "decode", None))):
            raise TypeError(
                f"A search asks a network for encode(source) and decode(tokens, memory, cache); "
                f"{type(network).__name__} does not have both."
            )
        self._network = cast(EncoderDecoder, network)
        self._use_cache = use_cache
        self._memory = self._network.encode(source)
        self._cache: Any = None
        self.tokens = source.new_full((len(source), 1), SPECIAL_TOKENS.start)
        self.limits = (source != SPECIAL_TOKENS.padding).sum(1) + longer_by

    @property
    def at_limit(self) -> Tensor:
        """Which prefixes (bool [N]) can only end."""
        return self.tokens.shape[1] > self.limits

    def next_log_probabilities(self) -> Tensor:
        """log p of each next token [N, vocabulary], in single precision at least; −∞ for NaN.

        Padding and start are excluded, and at the length limit all but the end.
        """
        tokens = self.tokens if self._cache is None else self.tokens[:, -1:]
        logits, cache = self._network.decode(tokens, self._memory, self._cache)
        if self._use_cache:
            self._cache = cache
        last = logits[:, -1].to(torch.promote_types(logits.dtype, torch.float32))
        log_probabilities = last.log_softmax(-1).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        log_probabilities[:, [SPECIAL_TOKENS.padding, SPECIAL_TOKENS.start]] = -torch.inf
        goes_on = torch.arange(log_probabilities.shape[1], device=tokens.device) != SPECIAL_TOKENS.end
        return log_probabilities.masked_fill(self.at_limit[:, None] & goes_on, -torch.inf)

    def keep(self, rows: Tensor) -> None:
        """Select the prefixes at rows [M], in this order; a row may occur several times."""
        if len(rows) == len(self.tokens) and torch.equal(rows, torch.arange(len(rows), device=rows.device)):
            return
        state = (self.tokens, self.limits, self._memory, self._cache)
        selected = tree_map_only(Tensor, lambda value: value.index_select(0, rows), state)
        self.tokens, self.limits, self._memory, self._cache = selected

    def append(self, tokens: Tensor) -> None:
        """Append one token [N] to each prefix."""
        self.tokens = torch.cat([self.tokens, tokens[:, None]], 1)


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
    with running(network, training=False):
        prefixes = Prefixes(network, source, longer_by, use_cache=use_cache)
        rows = torch.arange(len(source), device=source.device)
        total = torch.zeros(len(source), device=source.device, dtype=torch.float64)
        while len(rows):
            best, tokens = prefixes.next_log_probabilities().max(1)
            total = total + best
            ends = (tokens == SPECIAL_TOKENS.end) | (best == -torch.inf)
            for row, sentence, value in zip(
                rows[ends].tolist(), prefixes.tokens[ends, 1:].tolist(), total[ends].tolist(), strict=True
            ):
                hypotheses[row] = Hypothesis(sentence, value, value)
            going = (~ends).nonzero()[:, 0]
            prefixes.keep(going)
            prefixes.append(tokens[going])
            rows, total = rows[going], total[going]
    return [hypotheses[row] for row in range(len(source))]


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
    """Search for the target sentences of the highest score (Wu et al. 2016, section 7), in eval mode, all at once.

    Each sentence keeps the `width` most probable continuations of its prefixes; those that end are finished. The best
    is returned once `width` have finished, none of the others can become better, or the length limit is reached.

    Args:
        network: an `EncoderDecoder`.
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
    with running(network, training=False):
        search = _Beams(Prefixes(network, source, longer_by, use_cache=use_cache), width, penalty)
        while len(search.rows):
            search.step()
    return [_best(hypotheses) for hypotheses in search.finished]


def _best(hypotheses: list[Hypothesis]) -> Hypothesis:
    nothing = Hypothesis([], -torch.inf, -torch.inf)
    return max(hypotheses, key=lambda hypothesis: hypothesis.score, default=nothing)


class _Beams:
    """The beams of the undecided sentences.

    Attributes:
        rows: [B] indices of the sentences.
        totals: [B, K] log probability of each prefix, −∞ for an unused one.
        finished: hypotheses of every sentence.
    """

    def __init__(self, prefixes: Prefixes, width: int, penalty: float) -> None:
        self._prefixes = prefixes
        self._penalty = penalty
        self.rows = torch.arange(len(prefixes.tokens), device=prefixes.tokens.device)
        self.finished: list[list[Hypothesis]] = [[] for _ in self.rows]
        prefixes.keep(self.rows.repeat_interleave(width))
        # All prefixes of a sentence start equal, so only one of them counts.
        self.totals = torch.full((len(self.rows), width), -torch.inf, device=self.rows.device)
        self.totals[:, 0] = 0.0

    def step(self) -> None:
        """Append one token to every prefix, and drop the decided sentences."""
        sentences, width = self.totals.shape
        following = self._prefixes.next_log_probabilities()
        vocabulary = following.shape[1]
        candidates = (self.totals[:, :, None] + following.view(sentences, width, vocabulary)).flatten(1)
        # At most `width` candidates end, one for each prefix, so twice as many contain `width` that go on.
        values, places = candidates.topk(min(2 * width, candidates.shape[1]), dim=1)
        beams, tokens = places // vocabulary, places % vocabulary
        beams = beams + torch.arange(sentences, device=beams.device)[:, None] * width
        ends = tokens == SPECIAL_TOKENS.end
        self._finish(values[:, :width], beams[:, :width], ends[:, :width])

        self.totals, selected = values.masked_fill(ends, -torch.inf).topk(width, dim=1)
        going = (~self._decided()).nonzero()[:, 0]
        self._prefixes.keep(beams.gather(1, selected)[going].flatten())
        self._prefixes.append(tokens.gather(1, selected)[going].flatten())
        self.rows, self.totals = self.rows[going], self.totals[going]

    def _finish(self, values: Tensor, beams: Tensor, ends: Tensor) -> None:
        """Record the candidates [B, K] that ended, by log probability and row of their prefix."""
        sentence, rank = (ends & (values > -torch.inf)).nonzero().unbind(1)
        divisor = length_penalty(self._prefixes.tokens.shape[1], self._penalty)
        for row, tokens, value in zip(
            self.rows[sentence].tolist(),
            self._prefixes.tokens[beams[sentence, rank], 1:].tolist(),
            values[sentence, rank].tolist(),
            strict=True,
        ):
            self.finished[row].append(Hypothesis(tokens, value, value / divisor))

    def _decided(self) -> Tensor:
        """Which of the sentences [B] have their best hypothesis for certain, or `width` of them."""
        width = self.totals.shape[1]
        finished = [self.finished[row] for row in self.rows.tolist()]
        best = self.totals.new_tensor([_best(hypotheses).score for hypotheses in finished])
        enough = torch.tensor([len(hypotheses) >= width for hypotheses in finished], device=best.device)
        # A log probability only falls, and no penalty exceeds that of the greatest length with its end.
        limits = self._prefixes.limits[::width].tolist()
        longest = self.totals.new_tensor([length_penalty(limit + 1, self._penalty) for limit in limits])
        return self._prefixes.at_limit[::width] | enough | (best >= self.totals[:, 0] / longest)
