"""What runs report: a row per epoch, and the result at the end, each with the metrics of its kind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Generic, Self, TypeVar

from normless.train.outcome import Outcome


class Scored(ABC):
    """Base of the frozen dataclasses with a score."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    @abstractmethod
    def score(self) -> str:
        """The quality of the network, in a few words, as the progress bar shows it."""


class Row(Scored):
    """Base of the frozen dataclasses of numbers about one finished epoch.

    Attributes:
        epoch: number of epochs finished with this one, from 1.
        rate: learning rate of the epoch's last step, before the groups' multipliers.
        training_loss: mean of the losses (nats) of the epoch's steps, each before its own step.
        training_accuracy: of the same minibatches.
        seconds: wall time of the epoch's training, without evaluating and saving.
    """

    epoch: int
    rate: float
    training_loss: float
    training_accuracy: float
    seconds: float


SomeRow = TypeVar("SomeRow", bound=Row)


@dataclass(frozen=True)
class EpochRow(Row):
    """One finished epoch of classification; losses are means in nats, accuracies shares of the examples in 0..1.

    Attributes:
        training_loss_with_l2: training loss plus the L2 term Σ λ/2·‖p‖², at the same weights: what a step minimizes.
        training_accuracy: with mixup against the larger share of the target.
        test_loss: mean cross entropy on the test set after the epoch, without label smoothing.
        test_accuracy: share of test examples whose class has the largest logit.
        test_accuracy_top5: share whose class is among the five largest; None with five classes or fewer.
    """

    epoch: int
    rate: float
    training_loss: float
    training_loss_with_l2: float
    training_accuracy: float
    test_loss: float
    test_accuracy: float
    test_accuracy_top5: float | None
    seconds: float

    @property
    def score(self) -> str:
        """See `Scored.score`."""
        return f"test accuracy {self.test_accuracy:.2%}"


@dataclass(frozen=True)
class TranslationRow(Row):
    """One finished epoch of translation; losses are means in nats per token, accuracies shares of tokens in 0..1.

    Attributes:
        validation_loss: teacher-forced, on the validation set after the epoch, without label smoothing.
        validation_accuracy: share of its tokens with the largest logit, teacher-forced.
        validation_bleu: of its translations by greedy search, 0..100; None in epochs without BLEU.
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
        """See `Scored.score`."""
        bleu = "" if self.validation_bleu is None else f", BLEU {self.validation_bleu:.1f}"
        return f"validation loss {self.validation_loss:.3f}{bleu}"


class Report(Scored):
    """Base of the frozen dataclasses that say how a run ended; each has `epochs`, a tuple of rows.

    Attributes:
        ROW: the type of the rows.
        outcome: trained, chance or diverged; see `normless.train.outcome`.
    """

    ROW: ClassVar[type[Row]]

    outcome: Outcome

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, ready for JSON; a number that is not finite becomes its name as text."""
        values = asdict(self)
        rows = [_to_json(row) for row in values.pop("epochs")]
        return _to_json(values) | {"epochs": rows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        row: Any = cls.ROW
        rows = tuple(row(**_from_json(row, one)) for one in values["epochs"])
        return cls(**_from_json(cls, values) | {"epochs": rows})


@dataclass(frozen=True, kw_only=True)
class TrainingResult(Report, Generic[SomeRow]):
    """How a run ended.

    Attributes:
        outcome: `chance` where the test accuracy is not significantly above `chance_accuracy`, else trained or
            diverged; see `normless.train.outcome`.
        test_loss: mean cross entropy (nats) on the test set of the network at the end; may be infinite or NaN.
        test_accuracy: share of the test set, examples or teacher-forced tokens, classified correctly at the end.
        chance_accuracy: that of the best constant guess.
        seconds_per_epoch: mean wall time of training an epoch; of a run that diverged in its first epoch, the time
            per step times the steps of an epoch.
        steps: optimizer steps taken; a step whose loss diverged counts.
        parameters: number of trained parameters.
        diverged_epoch, diverged_step: epoch and step, both from 1, of the first loss that diverged; else None.
        plateaued: whether the training loss had plateaued; None where the run was too short to tell.
        data: provenance of the data set.
        config_hash: hash of the run's configuration.
        epochs: a row for every finished epoch.
    """

    outcome: Outcome
    test_loss: float
    test_accuracy: float
    chance_accuracy: float
    seconds_per_epoch: float
    steps: int
    parameters: int
    diverged_epoch: int | None
    diverged_step: int | None
    plateaued: bool | None
    data: str
    config_hash: str
    epochs: tuple[SomeRow, ...]

    def metrics_in_words(self) -> dict[str, str]:
        """What the command prints of the metrics, by title."""
        return {
            "test accuracy": f"{self.test_accuracy:.2%} (the best constant guess: {self.chance_accuracy:.2%})",
            "test loss": f"{self.test_loss:.4f} nats",
        }


@dataclass(frozen=True, kw_only=True)
class ClassificationResult(TrainingResult[EpochRow]):
    """How a run of classification ended, with the accuracies that `EpochRow` describes."""

    ROW = EpochRow

    test_accuracy_top5: float | None

    @property
    def score(self) -> str:
        """See `EpochRow.score`."""
        return f"test accuracy {self.test_accuracy:.2%}"

    def metrics_in_words(self) -> dict[str, str]:
        """What the command prints of the metrics, by title."""
        words = super().metrics_in_words()
        if self.test_accuracy_top5 is not None:
            words["among the top five"] = f"{self.test_accuracy_top5:.2%}"
        if self.epochs:
            last = self.epochs[-1]
            words["training loss"] = f"{last.training_loss:.4f}, with the L2 term {last.training_loss_with_l2:.4f}"
        return words


@dataclass(frozen=True, kw_only=True)
class RunResult(ClassificationResult):
    """How an image run ended.

    Attributes:
        doublings: how often the epochs were doubled for it.
    """

    doublings: int = 0


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
class TextResult(ClassificationResult, _OfText):
    """How a text run ended."""


@dataclass(frozen=True, kw_only=True)
class TranslationResult(TrainingResult[TranslationRow], _OfText):
    """How a translation run ended.

    Attributes:
        test_bleu_greedy: BLEU on the test set by greedy search with the network at the end, 0..100.
        test_bleu_beam: the same by beam search.
        bleu_signature: sacrebleu's, of both.
        validation_loss, validation_bleu: of the validation set, from the last row; None if there is no row.
    """

    ROW = TranslationRow

    test_bleu_greedy: float
    test_bleu_beam: float
    bleu_signature: str
    validation_loss: float | None
    validation_bleu: float | None

    @property
    def score(self) -> str:
        """See `Scored.score`."""
        return f"test BLEU {self.test_bleu_beam:.1f}"

    def metrics_in_words(self) -> dict[str, str]:
        """What the command prints of the metrics, by title."""
        bleu = f"{self.test_bleu_greedy:.2f} greedy, {self.test_bleu_beam:.2f} by beam search ({self.bleu_signature})"
        return {"test BLEU": bleu} | super().metrics_in_words()


def _to_json(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity and no NaN; their names (`inf`, `nan`) stand for them."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _from_json(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    real = {field.name for field in fields(kind) if str(field.type).startswith("float")}
    return {name: float(value) if name in real and value is not None else value for name, value in values.items()}
