"""What a step minimizes: cross entropy, its gradient over micro-batches, and the L2 term."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.data import SPECIAL_TOKENS
from normless.train.task import StepStatistics, Task


def accumulate_gradients(fabric: Fabric, network: nn.Module, task: Task[Any], batch: Any) -> StepStatistics:
    """Add the gradient of the batch's mean loss to the parameters' gradients.

    Each micro-batch is weighted by its share of the predictions, so the sum is the gradient of the whole batch for a
    network that computes every example on its own. Processes exchange gradients with the last micro-batch only; that
    exchange takes the mean over processes, so shares are relative to the mean number of predictions of a process.

    Args:
        fabric: that set up the network.
        network: set up by it.
        task: with the loss and the micro-batches.
        batch: this process's part of it.
    """
    parts = task.micro_batches(batch)
    total = mean_of_processes(fabric, task.count(batch[-1]))
    losses, correct = [], []
    for index, (*inputs, targets) in enumerate(parts):
        with fabric.no_backward_sync(network, enabled=index < len(parts) - 1):  # type: ignore[arg-type]
            logits = network(*map(in_memory_order, inputs))
            loss = task.loss(logits, targets) * (task.count(targets) / total)
            fabric.backward(loss)
        losses.append(loss.detach())
        correct.append(task.correct(logits.detach(), targets))
    return StepStatistics(torch.stack(losses).sum(), torch.stack(correct).sum() / total)


def mean_of_processes(fabric: Fabric, values: Any) -> Any:
    """The mean over all processes of a tensor; a plain number is the same in all."""
    if fabric.world_size == 1 or not isinstance(values, Tensor):
        return values
    real = values if values.is_floating_point() else values.to(torch.get_default_dtype())
    return fabric.all_reduce(real, reduce_op="mean")


def in_memory_order(inputs: Tensor) -> Tensor:
    """Images [B, C, H, W] in channels-last order, which convolutions compute fastest."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs


def count_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """The number of largest logits [B, classes] at the target, or at the largest share of it."""
    labels = targets if targets.ndim == 1 else targets.argmax(1)
    return (logits.argmax(1) == labels).sum()


def token_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    padding: int = SPECIAL_TOKENS.padding,
    reduction: Literal["mean", "sum"] = "mean",
) -> Tensor:
    """Cross entropy (nats) over all labels except padding: their mean, or their sum.

    With label smoothing ε the target of a token is (1 − ε)·one-hot + ε/vocabulary (Szegedy et al. 2016, section 7;
    0.1 in Vaswani et al. 2017, section 5.4).

    Args:
        logits: [B, T, vocabulary].
        labels: int64 [B, T].
        label_smoothing: ε, share of each target spread evenly over the vocabulary.
        padding: the label that does not count.
        reduction: "mean" over the tokens, or "sum".
    """
    return F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        ignore_index=padding,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )


def count_correct_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """The number of largest logits [B, T, vocabulary] at the labels [B, T]; padding does not count."""
    return ((logits.argmax(-1) == labels) & (labels != SPECIAL_TOKENS.padding)).sum()


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
