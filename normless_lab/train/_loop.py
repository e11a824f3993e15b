"""A training, set up on its devices, and one epoch of it: a function of weights, optimizer state, seed and epoch."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.optim import Optimizer

from normless.probes import RideAlong
from normless.residual import ResidualMap, residual_map
from normless.state import has_generators
from normless_lab.train._config import RunConfig
from normless_lab.train._execution import compile_blocks, recompute_where_needed, synchronized, tensor_cores
from normless_lab.train._fabric import DoublePrecision, Fabric, MixedPrecision
from normless_lab.train._objective import EpochRecord, accumulate_gradients, gathered, in_memory_order, l2_term
from normless_lab.train._pauses import GO_ON, STOPS, Pauses, stop_of
from normless_lab.train._run_files import Sharded, save_checkpoint, write_table
from normless_lab.train._run_listener import RunListener
from normless_lab.train._schedules import set_rate
from normless_lab.train._step_graph import StepGraph, is_capturable
from normless_lab.train._task import EpochTraining, Task
from normless_lab.train._turns import hand_over

if TYPE_CHECKING:
    from normless.doctor import Watch

# On an accelerator, reading losses waits for all work in flight, so they are read together.
STEPS_BETWEEN_READS = 25


@dataclass(frozen=True)
class Training:
    """A task with its network and optimizer, set up by `fabric`.

    Attributes:
        module: the network without the wrapper for training; map: its residual map.
        clipped: the parameters with clipped gradients.
        ride_along: probes along the way, if any; watch: of the network, if any.
        graph: replays steps that are not measured, on a card.
    """

    task: Task[Any]
    fabric: Fabric
    network: nn.Module
    module: nn.Module
    map: ResidualMap
    optimizer: Optimizer
    clipped: tuple[nn.Parameter, ...]
    ride_along: RideAlong | None
    watch: Watch | None
    graph: StepGraph | None = None

    def step(self, batch: Any, step: int) -> Tensor:
        """Run the whole step `step`, counted from 1, by its graph if it has one; see `gradients`."""
        is_measured = self.ride_along is not None and self.ride_along.when(step)
        if self.graph is None or self.graph.refusal is not None or is_measured:
            return self._whole_step(batch, step)
        return self.graph(batch)

    def _whole_step(self, batch: Any, step: int) -> Tensor:
        values = self.gradients(batch, step)
        self.update()
        return values

    def gradients(self, batch: Any, step: int) -> Tensor:
        """Compute the gradients, see `accumulate_gradients`; probes measure it, where steps are counted from 1.

        Returns loss (nats), L2 term (nats) and accuracy of the batch, float64 [3] on its device.
        """
        measured: AbstractContextManager[None] = nullcontext()
        if self.ride_along is not None:
            measured = self.ride_along.during(step, self.module, self.map, batch[-1])
        if self.watch is not None:
            self.watch.step = step - 1
        self.optimizer.zero_grad()
        with measured:
            loss, accuracy = accumulate_gradients(self.fabric, self.network, self.task, batch)
        loss = loss if self.watch is None else self.watch.loss(loss)
        return torch.stack(
            [value.to(loss.device, torch.float64) for value in (loss, l2_term(self.optimizer), accuracy)]
        )

    def update(self) -> None:
        """Clip the gradients and take a step of the optimizer."""
        self.task.clip(self.clipped)
        self.optimizer.step()

    @property
    def graph_in_words(self) -> str | None:
        """Whether steps were replayed as a CUDA graph, or the reason why not; None on the CPU."""
        return None if self.graph is None else self.graph.in_words

    def close(self) -> None:
        """Release the graph of the step, and end the watch."""
        if self.graph is not None:
            self.graph.close()
        if self.watch is not None:
            self.watch.close()

    def write_measurements(self, epoch: int) -> None:
        """Write what the probes measured since the last call, as `probes/NAME/epoch-0001.parquet` and so on."""
        tables = {} if self.ride_along is None else self.ride_along.take()
        for name, table in tables.items():
            write_table(table, self.task.directory.probes / name / f"epoch-{epoch:04d}.parquet")


def make_fabric(config: RunConfig) -> Fabric:
    """Make the Fabric that runs the training: one process, or those that torchrun started.

    A device that is not there, and another number of processes than the configuration's, are a ValueError.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    on_cuda = config.device != "cpu" and torch.cuda.is_available()
    if getattr(config, "sync_batch_norm", False) and config.devices > 1 and not on_cuda:
        raise ValueError(
            f"Expected CUDA devices for sync_batch_norm=True with devices={config.devices}: torch's SyncBatchNorm "
            "does not compute on the CPU. Leave sync_batch_norm out, or train by one process."
        )
    if started != config.devices:
        raise ValueError(
            f"Expected {config.devices} processes for devices={config.devices}, but {started} runs this. Start it "
            f"with: torchrun --nproc-per-node {config.devices}, as in "
            f"torchrun --nproc-per-node {config.devices} -m normless train … --devices {config.devices}"
        )
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' needs a CUDA device, and torch finds none; use device='cpu' or 'auto'.")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    _rejoin_process_group("nccl" if on_cuda else "gloo")
    device, sharded = "cuda" if on_cuda else "cpu", getattr(config, "strategy", "ddp") == "fsdp2"
    # Given by name, Fabric refuses the first for a sharded network, and prints a line about the second per run.
    plugin: Any = None
    if config.precision == "64-true":
        plugin = DoublePrecision()
    elif config.precision == "bf16-mixed" and not sharded:
        plugin = MixedPrecision(config.precision, device)
    # Else Fabric advises what is decided.
    with tensor_cores(torch.device(device)):
        fabric = Fabric(
            accelerator=device,
            devices=local,
            num_nodes=started // local,
            strategy="auto" if started == 1 else Sharded(started) if sharded else "ddp",
            precision=config.precision if plugin is None else None,
            plugins=plugin,
        )
        fabric.launch()
    return fabric


def _rejoin_process_group(backend: str) -> None:
    """Join the process group under a new name if torchrun restarted the processes (``--max-restarts``).

    Otherwise torch finds the addresses of the former processes in torchrun's store and tries to connect to them.
    """
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts == "0" or torch.distributed.is_initialized():
        return
    store, rank, processes = next(rendezvous("env://"))
    store = PrefixStore(f"restart-{restarts}", store)
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=processes)


def assemble(task: Task[Any], fabric: Fabric, ride_along: RideAlong | None, watched: bool = False) -> Training:
    """Build network and optimizer from the configuration; the converted network is traced once."""
    # Weights and images in channels-last order: a tenth off a step of a deep network on the CPU.
    sharded = isinstance(fabric.strategy, Sharded)
    order = torch.contiguous_format if sharded else torch.channels_last  # fully_shard takes no other
    network = task.build_network().to(fabric.device, memory_format=order)  # type: ignore[call-overload]
    structure = residual_map(network, *(inputs.to(fabric.device) for inputs in task.example_inputs()))
    if task.config.recompute != "never":
        *inputs, _ = task.micro_batches(next(task.train_batches(0, **task.place(fabric))))[0]
        with fabric.autocast():
            recompute_where_needed(task.config.recompute, network, structure, *map(in_memory_order, inputs))
    if getattr(task.config, "sync_batch_norm", False) and fabric.world_size > 1:
        network = synchronized(network)
    if getattr(task.config, "compile", False):
        compile_blocks(network, residual_map=structure)
    if isinstance(fabric.strategy, Sharded):
        fabric.strategy.structure = structure
    wrapped = fabric.setup_module(network)
    # Of the parameters as they are now, parts of them where they are sharded.
    optimizer: Any = fabric.setup_optimizers(task.build_optimizer(network, structure))
    clipped = task.clipped_parameters(network, structure)
    watch = None
    if watched:
        # Only a watched training needs the checks of `diagnose`, which take a while to import.
        from normless.doctor import Watch

        watch = Watch(wrapped.module)
    training = Training(task, fabric, wrapped, wrapped.module, structure, optimizer, clipped, ride_along, watch)
    if fabric.device.type != "cuda":
        return training
    refusal = uncaptured(task, fabric, watched, optimizer)
    # Gradients are those of step 0, which no probe measures.
    step = partial(replace(training, ride_along=None)._whole_step, step=0)
    return replace(training, graph=StepGraph(step, training.module, optimizer, refusal))


def uncaptured(task: Task[Any], fabric: Fabric, watched: bool, optimizer: Optimizer) -> str | None:
    """Return why the steps of a training are not captured as a CUDA graph; None if they may be."""
    config: Any = task.config
    reasons = {
        "batches of this kind of run may differ in shape": not hasattr(config, "graph"),
        "graph='never'": getattr(config, "graph", None) == "never",
        "the training is watched": watched,
        "several processes exchange gradients": fabric.world_size > 1,
        "the optimizer has no step for CUDA graphs, neither fused nor capturable": not is_capturable(optimizer),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def check_measurable(config: RunConfig) -> None:
    """Raise a ValueError if probes cannot watch a run: its batches are in parts, or its network is compiled."""
    micro = config.micro_batch_limit
    if micro is not None and micro < config.batch_limit:
        raise ValueError(
            f"Probes measure whole batches, but {config.MICRO_BATCH}={micro} passes them in parts; leave it out for "
            "a run that is measured."
        )
    if config.recompute != "never":
        raise ValueError(
            "Probes would measure passes that are computed twice; leave recompute out for a run that is measured."
        )
    if getattr(config, "strategy", "ddp") == "fsdp2":
        raise ValueError("Probes read whole weights; leave strategy='fsdp2' out for a run that is measured.")
    if getattr(config, "compile", False):
        raise ValueError("Probes cannot watch a compiled network; leave compile out for a run that is measured.")


def train_epoch(
    training: Training,
    epoch: int,
    listeners: Sequence[RunListener] = (),
    *,
    pauses: Pauses | None = None,
    begun: Mapping[str, Any] | None = None,
) -> EpochTraining:
    """Train for one epoch, counted from 0, or for the rest of an epoch that its checkpoint describes as `begun`.

    It ends early at the first loss that diverged. In one process on the CPU a loss is read before its step; on a
    card, and between processes, losses are read after up to 2 · `STEPS_BETWEEN_READS` further steps, which are then
    left out. It hands over after each step, if others wait.

    Raises:
        StoppedError: `pauses` stops the run, which is saved.
    """
    task, fabric = training.task, training.fabric
    # Torch's generators, which dropout draws from, depend on the epoch and the process alone.
    seeds = np.random.SeedSequence((task.config.seed, epoch, fabric.global_rank))
    torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
    training.network.train()
    record = EpochRecord(fabric, first_step=epoch * task.steps_per_epoch + 1, listeners=listeners)
    batches = enumerate(task.train_batches(epoch, **task.place(fabric)))
    start = time.perf_counter()
    if begun is not None:
        deque(islice(batches, record.restore(begun)), maxlen=0)
        _set_generators(fabric, begun["generators"])
        start -= begun["seconds"]
    for index, batch in batches:
        done = epoch * task.steps_per_epoch + index
        rate = task.lr(done)
        if rate != record.result.lr:
            record.result.lr = rate
            set_rate(training.optimizer, rate)
        if _step(training, batch, done + 1, record):
            break
        # Probes' measurements are kept by the epoch: runs with them are saved at its end alone.
        if pauses is None or training.ride_along is not None or index + 1 == task.steps_per_epoch:
            continue
        code = pauses.due(fabric, done + 1)
        if code == GO_ON:
            continue
        if record.read():
            break
        _pause(training, epoch, index + 1, record, time.perf_counter() - start, code)
    if record.result.diverged is None and not record.read():
        record.average()
    record.result.seconds = time.perf_counter() - start
    return record.result


def _step(training: Training, batch: Any, step: int, record: EpochRecord) -> bool:
    """Execute a step of the run, counted from 1; return whether a loss that was read has diverged."""
    if reads_at_once(training.fabric):
        record.add(training.gradients(batch, step))
        if record.read():
            return True
        training.update()
        hand_over()
        return False
    record.add(training.step(batch, step))
    hand_over()
    if ((step - 1) % training.task.steps_per_epoch + 1) % STEPS_BETWEEN_READS:
        return False
    if record.receive():
        return True
    record.request()
    return False


def _pause(training: Training, epoch: int, steps: int, record: EpochRecord, seconds: float, code: int) -> None:
    """Save the run after some steps of an epoch; raise the corresponding error if the code is that of a stop."""
    task, fabric = training.task, training.fabric
    within = record.state() | {"seconds": seconds, "generators": _generators(fabric)}
    save_checkpoint(fabric, task.directory, training.network, training.optimizer, epoch, within)
    if code in STOPS:
        raise stop_of(code, f" after step {steps} of {task.steps_per_epoch} of epoch {epoch + 1}")


def reads_at_once(fabric: Fabric) -> bool:
    """Return whether the loss of a step is read before the weights change, because waiting gains nothing."""
    return fabric.device.type == "cpu" and fabric.world_size == 1


def _generators(fabric: Fabric) -> list[Tensor]:
    """Return the states [processes, bytes] of torch's generators: the CPU's, and the device's if it has its own."""
    states = [torch.get_rng_state()]
    if has_generators(fabric.device):
        states.append(torch.get_device_module(fabric.device).get_rng_state(fabric.device))
    return [gathered(fabric, state.to(fabric.device)) for state in states]


def _set_generators(fabric: Fabric, states: Sequence[Tensor]) -> None:
    """Restore `_generators`, except states of another number of processes or kind of device."""
    if len(states[0]) != fabric.world_size:
        return
    own = [state[fabric.global_rank] for state in states]
    torch.set_rng_state(own[0])
    if has_generators(fabric.device) and len(own) > 1:
        torch.get_device_module(fabric.device).set_rng_state(own[1], fabric.device)
