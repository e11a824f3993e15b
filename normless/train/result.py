"""What a run reports: a row per epoch, and the result at its end."""

from __future__ import annotations

from dataclasses import dataclass

from normless.train.outcome import Outcome
from normless.train.report import Report


@dataclass(frozen=True)
class EpochRow:
    """One finished epoch; losses are means in nats, accuracies shares of the examples in 0..1.

    Attributes:
        epoch: number of epochs finished with this one, from 1.
        rate: learning rate of the epoch's last step, before the groups' multipliers.
        training_loss: mean cross entropy of the epoch's minibatches, each before its own step.
        training_loss_with_l2: the same plus the L2 term Σ λ/2·‖p‖², at the same weights: what a step minimizes.
        training_accuracy: of the same minibatches; with mixup against the larger share of the target.
        test_loss: mean cross entropy on the test set after the epoch, without label smoothing.
        test_accuracy: share of test examples whose class got the largest logit.
        test_accuracy_top5: share whose class is among the five largest; None with five classes or fewer.
        seconds: wall time of the epoch's training, without testing and saving.
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
        """What the progress bar shows."""
        return f"test accuracy {self.test_accuracy:.2%}"


@dataclass(frozen=True)
class RunResult(Report):
    """How a run ended.

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
        diverged_epoch, diverged_step: epoch and step, both from 1, of the first loss that diverged; else None.
        plateaued: whether the training loss had plateaued; None where the run was too short to tell.
        doublings: how often the epochs were doubled for it.
        data: provenance of the data set.
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
    diverged_epoch: int | None
    diverged_step: int | None
    plateaued: bool | None
    doublings: int
    data: str
    config_hash: str
    epochs: tuple[EpochRow, ...]

    @property
    def score(self) -> str:
        """What the progress bar shows."""
        return f"test accuracy {self.test_accuracy:.2%}"
