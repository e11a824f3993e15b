"""The losses and accuracies of the steps of an epoch, collected on the device and read on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from normless.probes import first_diverged
from normless_lab.train.fabric import Fabric
from normless_lab.train.objective import mean_of_processes
from normless_lab.train.run_listener import RunListener
from normless_lab.train.task import EpochTraining
from normless_lab.train.turns import Event, event_on, hand_over


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
        self._arrival: Event | None = None
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
