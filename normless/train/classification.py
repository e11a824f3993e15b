"""Runs of classification: the loss, accuracies and outcome of images and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn

from normless.data import ImageData, TextData
from normless.train.config import ExamplesConfig
from normless.train.evaluation import Evaluation, evaluate
from normless.train.objective import count_correct
from normless.train.outcome import chance_accuracy, finished_outcome
from normless.train.result import EpochRow
from normless.train.task import EpochTraining, Task

Config = TypeVar("Config", bound=ExamplesConfig)


class ClassificationTask(Task[Config]):
    """A network that returns logits [B, classes] for inputs [B, …]."""

    data: ImageData | TextData

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean cross entropy (nats) of the examples; targets int64 [B] or float [B, classes]."""
        return F.cross_entropy(logits, targets, label_smoothing=self.config.label_smoothing)

    def correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The number of largest logits at the target, or at the largest share of it."""
        return count_correct(logits, targets)

    def epoch_metrics(
        self, epoch: int, training: EpochTraining, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Test loss and accuracies, and the training loss with the L2 term."""
        return {"training_loss_with_l2": training.loss_with_l2} | _named(self._tested(fabric, network))

    def final_metrics(
        self, rows: Sequence[EpochRow], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Test loss and accuracies at the end, and the outcome."""
        if diverged:
            test = self._tested(fabric, network)
        else:
            test = Evaluation(rows[-1].test_loss, rows[-1].test_accuracy, rows[-1].test_accuracy_top5)
        labels = self.data.test_labels
        return {
            "outcome": "diverged" if diverged else finished_outcome(test.accuracy, labels),
            "chance_accuracy": chance_accuracy(labels),
            **_named(test),
        }

    def _tested(self, fabric: Fabric, network: nn.Module) -> Evaluation:
        """The metrics on the test set, in passes about as large as those of training."""
        config = self.config
        share = config.micro_batch_size or config.batch_size // config.devices
        return evaluate(fabric, network, self.data, max(64, share) * config.devices)


def _named(test: Evaluation) -> dict[str, Any]:
    return {f"test_{name}": value for name, value in test._asdict().items()}
