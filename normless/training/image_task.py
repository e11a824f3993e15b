"""The training of a network on images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from normless.data import Augmentation, Batch, ImageData
from normless.optim import adaptive_gradient_clipping
from normless.optim.schedules import rate_multiplier
from normless.training.config import TrainConfig
from normless.training.evaluation import Evaluation, evaluate
from normless.training.objective import accumulate_gradients
from normless.training.outcome import chance_accuracy, finished_outcome
from normless.training.result import EpochRow, RunResult
from normless.training.task import EpochTraining, StepStatistics, Task


@dataclass(frozen=True)
class ImageTask(Task[TrainConfig, EpochRow, RunResult]):
    """A network that tells the classes of images; `clipped` are the parameters whose gradients are."""

    data: ImageData
    augmentation: Augmentation
    clipped: tuple[nn.Parameter, ...]

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in an epoch."""
        return self.data.steps_per_epoch(self.config.batch_size)

    def batches(self, epoch: int) -> Iterator[Batch]:
        """This process's parts of the batches of an epoch, counted from 0."""
        return self.data.train_batches(
            self.config.batch_size,
            seed=self.config.seed,
            epoch=epoch,
            augmentation=self.augmentation,
            device=self.fabric.device,
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
        )

    def rate(self, done: int) -> float:
        """The learning rate of the step that follows `done` steps, before the groups' multipliers."""
        config, per_epoch = self.config, self.steps_per_epoch
        return config.rate * rate_multiplier(
            config.schedule, done, config.epochs * per_epoch, warmup=config.warmup_epochs * per_epoch
        )

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

    def clip(self) -> None:
        """Limit the gradients relative to the weights, if the configuration says so."""
        if self.config.clip is not None:
            adaptive_gradient_clipping(self.clipped, self.config.clip)

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

    def result(self, rows: Sequence[EpochRow], steps: int, diverged: EpochTraining | None) -> RunResult:
        """What became of the run; a diverged network is tested as it stands."""
        labels = self.data.test_labels
        if diverged is not None:
            test = self.evaluated()
        else:
            test = Evaluation(rows[-1].test_loss, rows[-1].test_accuracy, rows[-1].test_accuracy_top5)
        return RunResult(
            outcome=finished_outcome(test.accuracy, labels) if diverged is None else "diverged",
            test_accuracy=test.accuracy,
            test_accuracy_top5=test.accuracy_top5,
            test_loss=test.loss,
            chance_accuracy=chance_accuracy(labels),
            doublings=0,
            data=self.data.provenance,
            **self.course(rows, steps, diverged),
        )
