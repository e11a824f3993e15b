"""What a text run reports in the end."""

from __future__ import annotations

from dataclasses import dataclass

from normless.train.outcome import Outcome
from normless.train.report import Report
from normless.train.result import EpochRow


@dataclass(frozen=True)
class TextResult(Report):
    """How a text run ended.

    Attributes:
        outcome: trained, chance or diverged; see `normless.train.outcome`.
        test_accuracy: share of the test set the network gets right as it stood at the end, diverged or not.
        test_accuracy_top5: the same among the five largest logits; None with five classes or fewer.
        test_loss: mean cross entropy on the test set at the end; may be infinite or not a number.
        chance_accuracy: test accuracy of the best constant guess.
        seconds_per_epoch: mean wall time of training an epoch; of a run that diverged in its first epoch, the
            time per step times the steps of an epoch.
        steps: optimizer steps taken; a step whose loss diverged counts.
        parameters: number of trained parameters.
        vocabulary: number of tokens.
        diverged_epoch, diverged_step: epoch and step, both from 1, of the first loss that diverged; else None.
        plateaued: whether the training loss had plateaued; None where the run was too short to tell.
        data: provenance of the text, its checksum's beginning in it.
        data_checksum: SHA-256, in hexadecimal, of all sentences and labels.
        seed: of the run.
        versions: of the packages that numbers depend on, by name.
        config_hash: hash of the run's configuration.
        epochs: a row for every finished epoch.
    """

    ROW = EpochRow

    outcome: Outcome
    test_accuracy: float
    test_accuracy_top5: float | None
    test_loss: float
    chance_accuracy: float
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
    epochs: tuple[EpochRow, ...]

    @property
    def score(self) -> str:
        """What the progress bar shows."""
        return f"test accuracy {self.test_accuracy:.2%}"
