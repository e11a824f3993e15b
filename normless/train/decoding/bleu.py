"""BLEU (Papineni et al. 2002) by sacrebleu, with the signature that makes scores comparable (Post 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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
        ValueError: there are no translations, or not as many references.
        ModuleNotFoundError: sacrebleu is not installed.
    """
    if not translations or len(translations) != len(references):
        raise ValueError(
            f"BLEU compares each translation with its reference, got {len(translations)} translations and "
            f"{len(references)} references."
        )
    require_sacrebleu()
    from sacrebleu.metrics.bleu import BLEU

    # force: the corpus is not tokenized, whatever its sentences end in, as the signature says.
    metric = BLEU(force=True)
    result = metric.corpus_score(list(translations), [list(references)])
    # By rounding, the geometric mean of four times 100 exceeds 100.
    score = min(100.0, float(result.score))
    return Bleu(score, tuple(map(float, result.precisions)), float(result.bp), str(metric.get_signature()))


def require_sacrebleu() -> None:
    """Check, before hours of training, that BLEU can be computed.

    Raises:
        ModuleNotFoundError: sacrebleu is not installed.
    """
    try:
        import sacrebleu.metrics.bleu  # noqa: F401
    except ImportError as error:
        raise ModuleNotFoundError(
            'BLEU needs sacrebleu, which is not installed: pip install "normless[translation]".'
        ) from error
