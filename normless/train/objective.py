"""What a step minimizes, its gradient over micro-batches, and the L2 term."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.data import Batch


class BatchStatistics(NamedTuple):
    """Of one batch, on its device and not waited for: mean loss (nats) and number of right answers, both scalar."""

    loss: Tensor
    right: Tensor


def accumulate_gradients(
    fabric: Fabric, network: nn.Module, batch: Batch, *, micro_batch_size: int | None, label_smoothing: float = 0.0
) -> BatchStatistics:
    """Add the gradient of the batch's mean cross entropy to the parameters' gradients.

    The batch is passed in micro-batches, each weighted by its share of the examples, so the sum is the gradient
    of the whole batch for a network that computes every example on its own. Processes exchange gradients with
    the last micro-batch only.

    Args:
        fabric: that set up the network.
        network: set up by it; inputs [B, …] to logits [B, classes].
        batch: inputs, and targets int64 [B] or float [B, classes]; what is right is the largest target.
        micro_batch_size: examples per pass; the whole batch if None.
        label_smoothing: share of each target spread evenly over all classes.
    """
    size = len(batch.inputs)
    images = in_memory_order(batch.inputs)
    width = micro_batch_size or size
    parts = list(zip(torch.split(images, width), torch.split(batch.targets, width), strict=True))
    losses, right = [], []
    for index, (inputs, targets) in enumerate(parts):
        with fabric.no_backward_sync(network, enabled=index < len(parts) - 1):  # type: ignore[arg-type]
            logits = network(inputs)
            loss = F.cross_entropy(logits, targets, label_smoothing=label_smoothing) * (len(inputs) / size)
            fabric.backward(loss)
        losses.append(loss.detach())
        right.append(count_right(logits.detach(), targets))
    if len(parts) == 1:
        return BatchStatistics(losses[0], right[0])
    return BatchStatistics(torch.stack(losses).sum(), torch.stack(right).sum())


def in_memory_order(inputs: Tensor) -> Tensor:
    """Images [B, C, H, W] with the channels of a position side by side, as convolutions take them fastest."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs


def count_right(logits: Tensor, targets: Tensor) -> Tensor:
    """How many of the largest logits [B, classes] are at the target, or at the largest share of it."""
    labels = targets if targets.ndim == 1 else targets.argmax(1)
    return (logits.argmax(1) == labels).sum()


@torch.no_grad()
def l2_term(optimizer: Optimizer) -> Tensor:
    """Σ over parameter groups of λ/2·‖p‖², whose gradient the optimizer's weight decay λ·p is; a scalar."""
    groups: list[dict[str, Any]] = [group for group in optimizer.param_groups if group["weight_decay"]]
    if not groups:
        return torch.zeros(())
    terms = [
        torch.nn.utils.get_total_norm(group["params"]).square() * (group["weight_decay"] / 2) for group in groups
    ]
    return torch.stack(terms).sum()
