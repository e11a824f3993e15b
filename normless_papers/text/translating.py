"""Beam search of an encoder-decoder, and BLEU (Papineni et al. 2002) of a translated set by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from normless.extras import import_extra
from normless.state import running
from normless_papers.text.tokens import SPECIAL_TOKENS
from normless_papers.text.translation_batches import SetName, TranslationData


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


NOTHING = Hypothesis([], -torch.inf, -torch.inf)


def length_penalty(length: Any, strength: float) -> Any:
    """((5 + length) / 6)^strength, by which a log probability is divided (Wu et al. 2016, Eq. 14).

    ``length`` counts the end token: an empty sentence has length 1 and penalty 1.
    """
    return ((5 + length) / 6) ** strength


def beam_search(
    network: nn.Module, source: Tensor, *, width: int = 4, penalty: float = 0.6, longer_by: int = 50
) -> list[Hypothesis]:
    """Search for the target sentences of the highest score (Wu et al. 2016, section 7), in eval mode, all at once.

    Each sentence keeps the `width` most probable continuations of its prefixes; those that end are finished. The best
    is returned once `width` have finished, none of the others can become better, or the length limit is reached.

    Args:
        network: with `encode(source)`, which returns the memory of the source, and `decode(tokens, memory, cache)`,
            which returns the logits [B, T, vocabulary] of the tokens [B, T] that follow those in the cache, and the
            cache with them; None as the cache decodes all tokens anew. Memory and cache are tensors with the batch
            first, in any nesting of tuples, lists and dictionaries.
        source: int64 [B, S], padded.
        width: prefixes of each sentence; with 1, the most probable token is appended until it is the end.
        penalty: strength α of `length_penalty`, 0 for none. Vaswani et al. (2017, section 6.1) take 4 and 0.6.
        longer_by: largest number of tokens by which a translation may exceed its source; 50 as they take.

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
    if longer_by < 0:
        raise ValueError(f"A translation may be longer than its source by 0 or more tokens, not by {longer_by}.")
    if not (callable(getattr(network, "encode", None)) and callable(getattr(network, "decode", None))):
        raise TypeError(
            "A search asks a network for encode(source) and decode(tokens, memory, cache); "
            f"{type(network).__name__} does not have both."
        )
    with running(network, training=False):
        search = _Beams(network, source, width, penalty, longer_by)
        while len(search.rows):
            search.step()
    return [_best(hypotheses) for hypotheses in search.finished]


def _best(hypotheses: list[Hypothesis]) -> Hypothesis:
    return max(hypotheses, key=lambda hypothesis: hypothesis.score, default=NOTHING)


class _Beams:
    """The beams of the undecided sentences.

    Attributes:
        rows: [B] indices of the sentences.
        limits: [B] largest numbers of tokens of the translations, without start and end.
        totals: [B, K] log probability of each prefix, −∞ for an unused one.
        prefixes: tokens [B · K, T] of the prefixes, with the start; memory and cache of the network.
        finished: hypotheses of every sentence.
    """

    def __init__(self, network: Any, source: Tensor, width: int, penalty: float, longer_by: int) -> None:
        self._network, self._penalty = network, penalty
        self.rows = torch.arange(len(source), device=source.device)
        self.limits = (source != SPECIAL_TOKENS.padding).sum(1) + longer_by
        start = source.new_full((len(source), 1), SPECIAL_TOKENS.start)
        self.prefixes = _selected((start, network.encode(source), None), self.rows.repeat_interleave(width))
        self.finished: list[list[Hypothesis]] = [[] for _ in self.rows]
        # All prefixes of a sentence start equal, so only one of them counts.
        self.totals = torch.full((len(self.rows), width), -torch.inf, device=source.device)
        self.totals[:, 0] = 0.0

    def step(self) -> None:
        """Append one token to every prefix, and drop the decided sentences."""
        sentences, width = self.totals.shape
        following = self._next_log_probabilities().view(sentences, width, -1)
        vocabulary = following.shape[2]
        candidates = (self.totals[:, :, None] + following).flatten(1)
        # At most `width` candidates end, one for each prefix, so twice as many contain `width` that go on.
        values, places = candidates.topk(min(2 * width, candidates.shape[1]), dim=1)
        beams = places // vocabulary + torch.arange(sentences, device=places.device)[:, None] * width
        tokens = places % vocabulary
        ends = tokens == SPECIAL_TOKENS.end
        self._finish(values[:, :width], beams[:, :width], ends[:, :width])

        self.totals, selected = values.masked_fill(ends, -torch.inf).topk(width, dim=1)
        going = (~self._decided()).nonzero()[:, 0]
        kept = beams.gather(1, selected)[going].flatten()
        before, memory, cache = _selected(self.prefixes, kept)
        self.prefixes = (torch.cat([before, tokens.gather(1, selected)[going].view(-1, 1)], 1), memory, cache)
        self.rows, self.limits, self.totals = self.rows[going], self.limits[going], self.totals[going]

    def _next_log_probabilities(self) -> Tensor:
        """Return log p of each next token [B · K, vocabulary], in single precision at least; −∞ for NaN.

        Padding and start are excluded, and at the length limit all but the end.
        """
        tokens, memory, cache = self.prefixes
        logits, cache = self._network.decode(tokens if cache is None else tokens[:, -1:], memory, cache)
        self.prefixes = (tokens, memory, cache)
        last: Tensor = logits[:, -1].to(torch.promote_types(logits.dtype, torch.float32))
        log_probabilities = last.log_softmax(-1).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        log_probabilities[:, [SPECIAL_TOKENS.padding, SPECIAL_TOKENS.start]] = -torch.inf
        at_limit = (tokens.shape[1] > self.limits).repeat_interleave(self.totals.shape[1])
        goes_on = torch.arange(log_probabilities.shape[1], device=tokens.device) != SPECIAL_TOKENS.end
        return log_probabilities.masked_fill(at_limit[:, None] & goes_on, -torch.inf)

    def _finish(self, values: Tensor, beams: Tensor, ends: Tensor) -> None:
        """Record the candidates [B, K] that ended, by log probability and row of their prefix."""
        sentence, rank = (ends & (values > -torch.inf)).nonzero().unbind(1)
        tokens = self.prefixes[0]
        divisor = length_penalty(tokens.shape[1], self._penalty)
        found = (self.rows[sentence], tokens[beams[sentence, rank], 1:], values[sentence, rank])
        for row, content, value in zip(*(part.tolist() for part in found), strict=True):
            self.finished[row].append(Hypothesis(content, value, value / divisor))

    def _decided(self) -> Tensor:
        """Which of the sentences [B] have their best hypothesis for certain, or `width` of them."""
        finished = [self.finished[row] for row in self.rows.tolist()]
        best = self.totals.new_tensor([_best(hypotheses).score for hypotheses in finished])
        enough = best.new_tensor([len(hypotheses) >= self.totals.shape[1] for hypotheses in finished]).bool()
        # A log probability only falls, and no penalty exceeds that of the greatest length with its end.
        longest: Tensor = length_penalty(self.limits + 1, self._penalty)
        return (self.prefixes[0].shape[1] > self.limits) | enough | (best >= self.totals[:, 0] / longest)


def _selected(prefixes: tuple[Tensor, Any, Any], rows: Tensor) -> tuple[Tensor, Any, Any]:
    """Select prefixes, with their memory and cache, at rows [M], in this order; a row may occur several times."""
    if len(rows) == len(prefixes[0]) and torch.equal(rows, torch.arange(len(rows), device=rows.device)):
        return prefixes
    selected: tuple[Tensor, Any, Any] = tree_map_only(Tensor, lambda value: value.index_select(0, rows), prefixes)
    return selected


def translate(
    network: nn.Module,
    data: TranslationData,
    name: SetName,
    *,
    width: int = 1,
    penalty: float = 0.6,
    longer_by: int = 50,
    max_tokens: int = 4096,
    device: torch.device | str = "cpu",
    rank: int = 0,
    world_size: int = 1,
) -> list[str]:
    """Translate a set, sentences of similar length together, and return the translations in the set's order.

    Args:
        network: with ``encode`` and ``decode``, on the device.
        data: with the vocabulary the network was trained on.
        width: of the beam; 1 for greedy search.
        penalty, longer_by: see `beam_search`.
        max_tokens: of a batch with its padding, times the width of the beam.
        device: of the network.
        rank: of this process, which translates some of the batches.
        world_size: number of processes; each receives all translations.

    Raises:
        TypeError, ValueError: as `beam_search`.
    """
    tokens: dict[int, list[int]] = {}
    batches = data.evaluation_batches(name, max(1, max_tokens // max(1, width)), device=device)
    for rows, batch in islice(batches, rank, None, world_size):
        hypotheses = beam_search(network, batch.source, width=width, penalty=penalty, longer_by=longer_by)
        tokens.update(zip(rows.tolist(), (hypothesis.tokens for hypothesis in hypotheses), strict=True))
    if world_size > 1:
        parts: list[Any] = [None] * world_size
        torch.distributed.all_gather_object(parts, tokens)
        tokens = {row: sentence for part in parts for row, sentence in part.items()}
    return data.vocabulary.decode(tokens[row] for row in range(len(tokens)))


class Bleu(NamedTuple):
    """The score of a corpus.

    Attributes:
        score: 0 … 100.
        signature: how it was computed: references, case, tokenization, smoothing, version of sacrebleu.
    """

    score: float
    signature: str


def bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """Compare translations with one reference each, over the whole corpus: 13a tokens, case kept, smoothing exp.

    Raises:
        ValueError: the translations are empty, or the number of references differs.
        MissingExtraError: sacrebleu is not installed.
    """
    if not translations or len(translations) != len(references):
        raise ValueError(
            f"BLEU compares each translation with its reference, got {len(translations)} translations and "
            f"{len(references)} references."
        )
    # force: the corpus is not tokenized, whatever its sentences end in, as the signature says.
    metric = sacrebleu().BLEU(force=True)
    result = metric.corpus_score(list(translations), [list(references)])
    # By rounding, the geometric mean of four times 100 exceeds 100.
    score = min(100.0, float(result.score))
    return Bleu(score, str(metric.get_signature()))


def sacrebleu() -> Any:
    """Import sacrebleu; a MissingExtraError, before hours of training, if BLEU cannot be computed."""
    return import_extra("translation", "BLEU", "sacrebleu")
