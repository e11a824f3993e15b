"""The translation of a whole set, and its BLEU (Papineni et al. 2002) by sacrebleu."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import nn

from normless.extras import import_extra
from normless_papers.text.search import beam_search
from normless_papers.text.translation_batches import SetName, TranslationData


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
        precisions: of 1-, 2-, 3- and 4-grams, in percent.
        brevity_penalty: exp(1 − reference length / length) where the translations are shorter, else 1.
        signature: how it was computed: references, case, tokenization, smoothing, version of sacrebleu.
    """

    score: float
    precisions: tuple[float, ...]
    brevity_penalty: float
    signature: str

    def __str__(self) -> str:
        return f"BLEU {self.score:.1f} ({self.signature})"


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
    return Bleu(score, tuple(map(float, result.precisions)), float(result.bp), str(metric.get_signature()))


def sacrebleu() -> Any:
    """Import sacrebleu; a MissingExtraError, before hours of training, if BLEU cannot be computed."""
    return import_extra("translation", "BLEU", "sacrebleu")
