"""What is the same in all training that learns to tell classes: a step, a test, an epoch's row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from normless.data import Batch
from normless.train.evaluation import Evaluation, TestedData, evaluate
from normless.train.objective import accumulate_gradients
from normless.train.outcome import chance_accuracy, finished_outcome
from normless.train.report import Report
from normless.train.result import EpochRow
from normless.train.settings import ClassificationSettings
from normless.train.task import EpochTraining, StepStatistics, Task

Config = TypeVar("Config", bound=ClassificationSettings)
Result = TypeVar("Result", bound=Report)


@dataclass(frozen=True)
class ClassificationTask(Task[Config, EpochRow, Result]):
    """A network that returns logits [B, classes] for inputs [B, …]."""

    data: TestedData

    def gradients(self, batch: Batch, step: int) -> StepStatistics:
        """Add the gradient of the batch's mean cross entropy to the parameters' gradients."""
        with self.measured(step, batch.targets):
            statistics = accumulate_gradients(
                self.fabric,
                self.network,
                batch,
                micro_batch_size=self.config.micro_batch_size,
                label_smoothing=self.config.label_smoothing,
            )
        return StepStatistics(statistics.loss, statistics.right / len(batch.inputs))

    def evaluated(self) -> Evaluation:
        """The test set's loss and accuracies, in passes about as large as those of training."""
        config = self.config
        share = config.micro_batch_size or config.batch_size // config.devices
        return evaluate(
            self.fabric,
            self.network.module,  # type: ignore[arg-type]
            self.data,
            max(64, share) * config.devices,
        )

    def row(self, epoch: int, training: EpochTraining) -> EpochRow:
        """Test the network, and report an epoch that is finished, counted from 1."""
        test = self.evaluated()
        return EpochRow(
            epoch=epoch,
            rate=training.rate,
            training_loss=training.loss,
            training_loss_with_l2=training.loss_with_l2,
            training_accuracy=training.accuracy,
            test_loss=test.loss,
            test_accuracy=test.accuracy,
            test_accuracy_top5=test.accuracy_top5,
            seconds=training.seconds,
        )

    def final(self, rows: Sequence[EpochRow], diverged: EpochTraining | None) -> dict[str, Any]:
        """The fields about the test set that results have; a diverged network is tested as it stands."""
        labels = self.data.test_labels
        if diverged is not None:
            test = self.evaluated()
        else:
            test = Evaluation(rows[-1].test_loss, rows[-1].test_accuracy, rows[-1].test_accuracy_top5)
        return {
            "outcome": finished_outcome(test.accuracy, labels) if diverged is None else "diverged",
            "test_accuracy": test.accuracy,
            "test_accuracy_top5": test.accuracy_top5,
            "test_loss": test.loss,
            "chance_accuracy": chance_accuracy(labels),
        }
