"""What a translation run reports: a row per epoch, and the result at its end."""

from __future__ import annotations

from dataclasses import dataclass

from normless.train.outcome import Outcome
from normless.train.report import Report


@dataclass(frozen=True)
class TranslationRow:
    """One finished epoch; losses are means in nats per token, accuracies shares of the tokens in 0..1.

    Attributes:
        epoch: number of epochs finished with this one, from 1.
        rate: learning rate of the epoch's last step, before the groups' multipliers.
        training_loss: mean of the epoch's batches, each before its own step, with label smoothing.
        training_accuracy: of the same batches, each token told from those before it.
        validation_loss: on the validation set after the epoch, without label smoothing.
        validation_accuracy: share of its tokens that got the largest logit, told from those before them.
        validation_bleu: of its translations by greedy search, 0..100; None where that was not asked for.
        seconds: wall time of the epoch's training, without evaluating and saving.
    """

    epoch: int
    rate: float
    training_loss: float
    training_accuracy: float
    validation_loss: float
    validation_accuracy: float
    validation_bleu: float | None
    seconds: float

    @property
    def score(self) -> str:
        """What the progress bar shows."""
        bleu = "" if self.validation_bleu is None else f", BLEU {self.validation_bleu:.1f}"
        return f"validation loss {self.validation_loss:.3f}{bleu}"


@dataclass(frozen=True)
class TranslationResult(Report):
    """How a translation run ended.

    Attributes:
        outcome: `chance` where the network tells the test set's tokens, each from those before it, no better than the
            best constant guess does; else trained or diverged; see `normless.train.outcome`.
        test_bleu_greedy: BLEU on the test set by greedy search as the network stood at the end, 0..100.
        test_bleu_beam: the same by beam search.
        bleu_signature: sacrebleu's, of both.
        test_loss: mean cross entropy on the test set (nats per token); may be infinite or not a number.
        test_accuracy: share of the test set's tokens the network gets right.
        chance_accuracy: that of the best constant guess.
        validation_loss, validation_bleu: of the validation set, as the last row has them; None if there is no row.
        seconds_per_epoch: mean wall time of training an epoch; of a run that diverged in its first epoch, the time
            per step times the steps of an epoch.
        steps: optimizer steps taken; a step whose loss diverged counts.
        parameters: number of trained parameters.
        vocabulary: number of byte pairs.
        diverged_epoch, diverged_step: epoch and step, both from 1, of the first loss that diverged; else None.
        plateaued: whether the training loss had plateaued; None where the run was too short to tell.
        data: provenance of the text, its checksum's beginning in it.
        data_checksum: SHA-256, in hexadecimal, of all sentences.
        seed: of the run.
        versions: of the packages that numbers depend on, by name.
        config_hash: hash of the run's configuration.
        epochs: a row for every finished epoch.
    """

    ROW = TranslationRow

    outcome: Outcome
    test_bleu_greedy: float
    test_bleu_beam: float
    bleu_signature: str
    test_loss: float
    test_accuracy: float
    chance_accuracy: float
    validation_loss: float | None
    validation_bleu: float | None
    seconds_per_epoch: float
    steps: int
    parameters: int
    vocabulary: int
    diverged_epoch: int | None
    diverged_step: int | None
    plateaued: bool | None
    data: str
    data_checksum: str
    seed: int
    versions: dict[str, str]
    config_hash: str
    epochs: tuple[TranslationRow, ...]

    @property
    def score(self) -> str:
        """What the progress bar shows."""
        return f"test BLEU {self.test_bleu_beam:.1f}"
