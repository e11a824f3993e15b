"""What a run reports: a row per epoch, and the result at its end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from normless.training.outcome import Outcome


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


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
        outcome: trained, chance or diverged; see `normless.training.outcome`.
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

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, ready for JSON; a number that is not finite becomes its name as text."""
        values = asdict(self)
        values["epochs"] = [_to_json(row) for row in values["epochs"]]
        return _to_json(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunResult:
        """The inverse of `to_dict`."""
        rows = tuple(EpochRow(**_from_json(EpochRow, row)) for row in values["epochs"])
        return cls(**_from_json(cls, values) | {"epochs": rows})


def _to_json(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity and no NaN; their names (`inf`, `nan`) stand for them."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _from_json(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    real = {field.name for field in fields(kind) if str(field.type).startswith("float")}
    return {name: float(value) if name in real and value is not None else value for name, value in values.items()}
