"""The results of runs on text: classification of sentences, translation."""

from __future__ import annotations

from dataclasses import dataclass

from normless_lab.train import Row, RunResult, TrainingResult


@dataclass(frozen=True)
class TranslationRow(Row):
    """One finished epoch of translation; losses are means in nats per token, accuracies shares of tokens in 0..1.

    Attributes:
        validation_loss: teacher-forced, on the validation set after the epoch, without label smoothing.
        validation_accuracy: share of its tokens with the largest logit, teacher-forced.
        validation_bleu: of its translations by greedy search, 0..100; None in epochs without BLEU.
    """

    validation_loss: float
    validation_accuracy: float
    validation_bleu: float | None

    @property
    def score(self) -> str:
        """The validation loss, and BLEU if there is one."""
        bleu = "" if self.validation_bleu is None else f", BLEU {self.validation_bleu:.1f}"
        return f"validation loss {self.validation_loss:.3f}{bleu}"


@dataclass(frozen=True, kw_only=True)
class _OfText:
    """The further fields of runs on text.

    Attributes:
        vocabulary: number of tokens.
        data_checksum: SHA-256, in hexadecimal, of all sentences and labels.
        seed: of the run.
        versions: of the packages that numbers depend on, by name.
    """

    vocabulary: int
    data_checksum: str
    seed: int
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TextResult(RunResult, _OfText):
    """How a text run ended."""


@dataclass(frozen=True, kw_only=True)
class TranslationResult(TrainingResult[TranslationRow], _OfText):
    """How a translation run ended.

    Attributes:
        test_bleu_greedy: BLEU on the test set by greedy search with the network at the end, 0..100.
        test_bleu_beam: the same by beam search.
        bleu_signature: sacrebleu's, of both.
        validation_loss, validation_bleu: of the validation set, from the last row; None without rows.
    """

    ROW = TranslationRow

    test_bleu_greedy: float
    test_bleu_beam: float
    bleu_signature: str
    validation_loss: float | None
    validation_bleu: float | None

    @property
    def score(self) -> str:
        """BLEU on the test set."""
        return f"test BLEU {self.test_bleu_beam:.1f}"

    def metrics_in_words(self) -> dict[str, str]:
        """Return the metrics as the command prints them, by title."""
        bleu = f"{self.test_bleu_greedy:.2f} greedy, {self.test_bleu_beam:.2f} by beam search ({self.bleu_signature})"
        return {"test BLEU": bleu} | super().metrics_in_words()
