"""Runs of classification: the loss, metrics and outcome of images and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy

from normless.data import ImageData, TextData
from normless.train.config import ExamplesConfig
from normless.train.objective import Evaluation, count_correct, in_memory_order, mean_metric, share_buffers
from normless.train.outcome import chance_accuracy, finished_outcome
from normless.train.result import EpochRow
from normless.train.task import EpochTraining, Task

TOP = 5

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
        return {"training_loss_with_l2": training.loss_with_l2} | self._test_metrics(fabric, network)

    def final_metrics(
        self, rows: Sequence[EpochRow], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Test loss and accuracies at the end, and the outcome."""
        names = [f"test_{name}" for name in Evaluation._fields]
        test = self._test_metrics(fabric, network) if diverged else {name: getattr(rows[-1], name) for name in names}
        labels = self.data.test_labels
        outcome = "diverged" if diverged else finished_outcome(test["test_accuracy"], labels)
        return {"outcome": outcome, "chance_accuracy": chance_accuracy(labels)} | test

    def _test_metrics(self, fabric: Fabric, network: nn.Module) -> dict[str, Any]:
        """The metrics on the test set, in passes about as large as those of training."""
        config = self.config
        share = config.micro_batch_size or config.batch_size // config.devices
        test = evaluate(fabric, network, self.data, max(64, share) * config.devices)
        return {f"test_{name}": value for name, value in test._asdict().items()}


@torch.no_grad()
def evaluate(fabric: Fabric, network: nn.Module, data: ImageData | TextData, batch_size: int) -> Evaluation:
    """Pass the test set, a part in each process, through the network in evaluation mode; `batch_size` is of all.

    The network is passed without its wrapper for training, which synchronizes every pass and so requires parts of
    equal size.
    """
    network.eval()
    share_buffers(fabric, network)
    loss = mean_metric(fabric)
    accuracies = {
        top: MulticlassAccuracy(data.classes, top_k=top, average="micro", validate_args=False).to(fabric.device)
        for top in ((1, TOP) if data.classes > TOP else (1,))
    }
    kind = next(network.parameters()).dtype
    ranks = {"rank": fabric.global_rank, "world_size": fabric.world_size}
    for inputs, targets in data.test_batches(batch_size, device=fabric.device, **ranks):
        real = in_memory_order(inputs.to(kind)) if inputs.is_floating_point() else inputs
        with fabric.autocast():
            logits: Tensor = network(real)
        logits = logits.to(torch.get_default_dtype())
        loss.update(F.cross_entropy(logits, targets, reduction="none"))
        for accuracy in accuracies.values():
            accuracy.update(logits, targets)
    # The metric divides in single precision; the share is that of a whole number of examples.
    shares = {top: round(float(a.compute()) * data.test_size) / data.test_size for top, a in accuracies.items()}
    return Evaluation(float(loss.compute()), shares[1], shares.get(TOP))
