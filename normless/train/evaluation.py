"""Loss and accuracy on a whole set, each process a part of it."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy

from normless.data import ImageData, SetName, TextData, TranslationData
from normless.lifting import evaluating
from normless.train.objective import count_correct_tokens, in_memory_order, token_cross_entropy

TOP = 5


class Evaluation(NamedTuple):
    """Mean cross entropy (nats), accuracy, and accuracy among the top five (None with five classes or fewer)."""

    loss: float
    accuracy: float
    accuracy_top5: float | None = None


def mean_metric(fabric: Fabric) -> MeanMetric:
    """A mean over all processes, in double precision; a NaN in it makes it NaN."""
    metric = MeanMetric(nan_strategy="disable").to(fabric.device)
    metric.set_dtype(torch.float64)
    return metric


@torch.no_grad()
def evaluate(fabric: Fabric, network: nn.Module, data: ImageData | TextData, batch_size: int) -> Evaluation:
    """Pass the whole test set, each process its part, through the network in evaluation mode.

    Args:
        fabric: of the processes, devices and precision.
        network: the module that returns logits [B, classes], without the wrapper for training, whose exchange in
            every pass does not allow parts that differ in size between processes.
        data: with the test set.
        batch_size: examples per pass of all processes.
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


def evaluate_tokens(
    fabric: Fabric, network: nn.Module, data: TranslationData, name: SetName, max_tokens: int
) -> Evaluation:
    """Pass a whole set, each process some of its batches, through the network in evaluation mode, teacher-forced.

    Args:
        fabric: of the processes, devices and precision.
        network: the module without the wrapper for training; source and target to logits [B, T, vocabulary].
        data: with the set.
        name: "train", "validation" or "test".
        max_tokens: of a batch.
    """
    share_buffers(fabric, network)
    loss, correct, count = 0.0, 0, 0
    batches = data.evaluation_batches(name, max_tokens, device=fabric.device)
    with evaluating(network):
        for _, batch in islice(batches, fabric.global_rank, None, fabric.world_size):
            with fabric.autocast():
                logits: Tensor = network(batch.source, batch.target)
            logits = logits.to(torch.get_default_dtype())
            loss += float(token_cross_entropy(logits, batch.labels, reduction="sum"))
            correct += int(count_correct_tokens(logits, batch.labels))
            count += int(batch.label_count)
    totals = torch.tensor([loss, correct, count], dtype=torch.float64, device=fabric.device)
    loss, right, tokens = fabric.all_reduce(totals, reduce_op="sum").tolist()  # type: ignore[union-attr]
    return Evaluation(loss / tokens, right / tokens)


def share_buffers(fabric: Fabric, network: nn.Module) -> None:
    """Give every process the buffers of the first, whose checkpoint is kept."""
    if fabric.world_size > 1:
        for buffer in network.buffers():
            torch.distributed.broadcast(buffer, 0)
