"""The objective of a step, its gradient over micro-batches, means over processes, and an epoch's record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normless.probes import first_diverged
from normless_lab.train._fabric import Fabric
from normless_lab.train._run_listener import RunListener
from normless_lab.train._task import EpochTraining, Task
from normless_lab.train._turns import CardEvent, event_on, hand_over


def accumulate_gradients(fabric: Fabric, network: nn.Module, task: Task[Any], batch: Any) -> tuple[Tensor, Tensor]:
    """Add the gradient of the mean loss of a process's batch to the parameters' gradients.

    Each micro-batch is weighted by its share of the predictions, so the sum is the gradient of the whole batch for a
    network that computes every example on its own. Processes exchange gradients with the last micro-batch only; that
    exchange takes the mean over processes, so shares are relative to the mean number of predictions of a process.

    Returns mean loss (nats) and accuracy of the batch, scalars on its device.
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
    return torch.stack(losses).sum(), torch.stack(correct).sum() / total


def evaluate(
    fabric: Fabric, network: nn.Module, batches: Iterable[Any], sums: Callable[[Tensor, Tensor], tuple[Any, ...]]
) -> list[float]:
    """Return means over a set for a network in evaluation mode; the processes share the batches.

    The network comes without its wrapper for training, which synchronizes every pass and so requires parts of equal
    size. From logits and targets `sums` computes sums over a batch, and last the count that divides them. On a card
    it hands back control before the sums are read, elsewhere after a batch if another thread waits.
    """
    total = _summed(fabric, network, batches, sums)
    hand_over(event_on(total.device))
    *totals, count = total.tolist()
    return [value / count for value in totals]


@torch.no_grad()
def _summed(
    fabric: Fabric, network: nn.Module, batches: Iterable[Any], sums: Callable[[Tensor, Tensor], tuple[Any, ...]]
) -> Tensor:
    """Return the sums over all batches of all processes, float64 on the device."""
    network.eval()
    if fabric.world_size > 1:
        # The buffers of the first process, which saves the checkpoint.
        for buffer in network.buffers():
            torch.distributed.broadcast(buffer, 0)
    kind = next(network.parameters()).dtype
    total = torch.zeros((), dtype=torch.float64, device=fabric.device)
    for *inputs, targets in batches:
        real = [in_memory_order(tensor.to(kind)) if tensor.is_floating_point() else tensor for tensor in inputs]
        with fabric.autocast():
            logits: Tensor = network(*real)
        values = sums(logits.to(torch.get_default_dtype()), targets)
        total = total + torch.stack([_on(fabric.device, value) for value in values])
        hand_over()
    if fabric.world_size == 1:
        return total
    # A process that had no batch has a 0 where the others have their sums.
    length: Any = fabric.all_reduce(torch.tensor(total.numel(), device=total.device), reduce_op="max")
    whole: Tensor = fabric.all_reduce(total.expand(int(length)).clone(), reduce_op="sum")  # type: ignore[assignment]
    return whole


def _on(device: torch.device, value: Tensor | float) -> Tensor:
    """Return a scalar in double precision on a device; a number is written there, as a copy would wait."""
    if isinstance(value, Tensor):
        return value.to(device, torch.float64)
    return torch.full((), value, dtype=torch.float64, device=device)


def mean_of_processes(fabric: Fabric, values: Any) -> Any:
    """Return the mean of a tensor over all processes; a plain number is the same in all of them."""
    if fabric.world_size == 1 or not isinstance(values, Tensor):
        return values
    real = values if values.is_floating_point() else values.to(torch.get_default_dtype())
    return fabric.all_reduce(real, reduce_op="mean")


def in_memory_order(inputs: Tensor) -> Tensor:
    """Return images [B, C, H, W] in channels-last order, which is fastest for convolutions."""
    return inputs.contiguous(memory_format=torch.channels_last) if inputs.dim() == 4 else inputs


def count_correct(logits: Tensor, targets: Tensor) -> Tensor:
    """Count the examples with the largest of the logits [B, classes] at the target, or at its largest share."""
    labels = targets if targets.ndim == 1 else targets.argmax(1)
    return (logits.argmax(1) == labels).sum()


@torch.no_grad()
def l2_term(optimizer: Optimizer) -> Tensor:
    """Return Σ over parameter groups of λ/2·‖p‖², a scalar; its gradient is the optimizer's weight decay λ·p.

    It is 0 for a decay that is decoupled from the gradient, as AdamW's, which is no term of the loss.
    """
    # Fabric's wrapper has torch's optimizer inside.
    decoupled = isinstance(getattr(optimizer, "optimizer", optimizer), (torch.optim.AdamW, torch.optim.Adafactor))
    groups: list[dict[str, Any]] = [
        group
        for group in optimizer.param_groups
        if group["weight_decay"] and not group.get("decoupled_weight_decay", decoupled)
    ]
    terms = [
        torch.nn.utils.get_total_norm(group["params"]).square() * (group["weight_decay"] / 2) for group in groups
    ]
    device = optimizer.param_groups[0]["params"][0].device
    total = torch.stack(terms).sum() if terms else torch.zeros((), device=device)
    # Of sharded weights it is spread over the processes.
    whole: Tensor = total.full_tensor() if hasattr(total, "full_tensor") else total
    return whole


class EpochRecord:
    """Collects a tensor [loss, L2 term, accuracy] per step, without synchronization, and reads the losses on demand.

    On a GPU the losses are read in two parts, `request` and `receive`, with steps in between, so that the host never
    waits for an idle GPU.

    Attributes:
        result: what was read.
    """

    def __init__(self, fabric: Fabric, *, first_step: int, listeners: Sequence[RunListener]) -> None:
        self._fabric = fabric
        self._first_step = first_step
        self._listeners = listeners
        self._steps: list[Tensor] = []
        self._arriving: Tensor | None = None
        self._arrival: CardEvent | None = None
        self.result = EpochTraining()

    def add(self, values: Tensor) -> None:
        """Add a step of this process, float64 [3] on the device."""
        self._steps.append(values)

    def state(self) -> dict[str, Any]:
        """Return the steps so far, as `restore` takes them: the losses read, and of each process what was added."""
        added = gathered(self._fabric, torch.stack(self._steps))
        return {"losses": list(self.result.losses), "added": added}

    def restore(self, state: Mapping[str, Any]) -> int:
        """Take over the steps of `state`, and return their number; with another number of processes, their means."""
        fabric, added = self._fabric, state["added"]
        own = added[fabric.global_rank] if len(added) == fabric.world_size else added.mean(0)
        self._steps = list(own.to(fabric.device).unbind())
        self.result.losses.extend(state["losses"])
        return len(self._steps)

    def request(self) -> None:
        """Start to bring the losses that were not read to the host, as means over all processes."""
        unread = self._steps[len(self.result.losses) :]
        if not unread:
            return
        losses = mean_of_processes(self._fabric, torch.stack([values[0] for values in unread]))
        self._arriving = losses.to("cpu", non_blocking=True)
        self._arrival = event_on(losses.device)

    def receive(self) -> bool:
        """Wait for the requested losses and notify the listeners; return whether one of the losses diverged."""
        while self._arrival is not None and not self._arrival.query():
            hand_over(self._arrival)
        arrived, self._arriving, self._arrival = self._arriving, None, None
        return False if arrived is None else self._take(arrived.tolist())

    def read(self) -> bool:
        """Read all losses; return whether one of them diverged."""
        if self.receive():
            return True
        self.request()
        return self.receive()

    def _take(self, values: list[float]) -> bool:
        losses = self.result.losses
        diverged = first_diverged(values)
        if diverged is not None:
            self.result.diverged = len(losses) + diverged
            values = values[: diverged + 1]
        for step, loss in enumerate(values, self._first_step + len(losses)):
            for listener in self._listeners:
                listener.on_step(step, loss)
        losses.extend(values)
        return diverged is not None

    def average(self) -> None:
        """Take the means over the epoch's steps, in double precision."""
        means = mean_of_processes(self._fabric, torch.stack(self._steps).mean(0))
        loss, l2, self.result.accuracy = means.tolist()
        self.result.loss, self.result.loss_with_l2 = loss, loss + l2


def gathered(fabric: Fabric, values: Tensor) -> Tensor:
    """Return the values [processes, …] of all processes, on the CPU."""
    every: Tensor = fabric.all_gather(values)  # type: ignore[assignment]
    return every.reshape(fabric.world_size, *values.shape).cpu()
