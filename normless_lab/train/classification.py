"""Runs of classification: their loss, metrics and outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

from normless_lab.train.config import ExamplesConfig
from normless_lab.train.fabric import Fabric
from normless_lab.train.objective import count_correct, evaluate
from normless_lab.train.result import EpochRow, chance_accuracy, finished_outcome
from normless_lab.train.task import EpochTraining, Task

TOP = 5

Config = TypeVar("Config", bound=ExamplesConfig)


class ClassificationTask(Task[Config]):
    """A network that returns logits [B, classes] for inputs [B, …].

    Besides what every task asks of it, `data` has `classes`, `test_labels` and `test_batches`, as `ImageData`.
    """

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy (nats) of the examples; targets int64 [B] or float [B, classes]."""
        return F.cross_entropy(logits, targets, label_smoothing=self.config.label_smoothing)

    def correct(self, logits: Tensor, targets: Tensor) -> Tensor:
        """See `count_correct`."""
        return count_correct(logits, targets)

    @property
    def examples_per_pass(self) -> int:
        """Return the number of examples that occupy a GPU in a pass without gradients."""
        return 1

    def epoch_metrics(
        self, epoch: int, training: EpochTraining, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Return test loss and accuracies, and the training loss with the L2 term."""
        test = self._test_metrics(fabric, network)
        return {"training_loss_with_l2": training.loss_with_l2} | test

    def final_metrics(
        self, rows: Sequence[EpochRow], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Return test loss and accuracies at the end, and the outcome."""
        if diverged:
            test = self._test_metrics(fabric, network)
        else:
            test = {name: getattr(rows[-1], name) for name in ("test_loss", "test_accuracy", "test_accuracy_top5")}
        labels = self.data.test_labels
        outcome = "diverged" if diverged else finished_outcome(test["test_accuracy"], labels)
        return {"outcome": outcome, "chance_accuracy": chance_accuracy(labels)} | test

    def _test_metrics(self, fabric: Fabric, network: nn.Module) -> dict[str, Any]:
        """Return the metrics on the test set, in passes as large as those of training, on a card larger ones."""
        config, top = self.config, min(TOP, self.data.classes)

        def sums(logits: Tensor, targets: Tensor) -> tuple[Any, ...]:
            losses = F.cross_entropy(logits, targets, reduction="none").double()
            among_top = (logits.topk(top, 1).indices == targets[:, None]).sum()
            return losses.sum(), count_correct(logits, targets), among_top, len(targets)

        share = max(64, config.micro_batch_size or config.batch_size // config.devices)
        if fabric.device.type != "cpu":
            share = max(share, self.examples_per_pass)
        batches = self.data.test_batches(share * config.devices, **self.place(fabric))
        loss, accuracy, top5 = evaluate(fabric, network, batches, sums)
        top5_or_none = top5 if self.data.classes > TOP else None
        return {"test_loss": loss, "test_accuracy": accuracy, "test_accuracy_top5": top5_or_none}
