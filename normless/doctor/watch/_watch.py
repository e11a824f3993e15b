"""`nl.watch`: watch a training by hooks on the network's forward and on the steps of its optimizer."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from os import PathLike
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from normless._internal.arguments import inside_wrappers, require_network
from normless._internal.calling import in_place_of_forward
from normless.doctor._findings import Finding
from normless.doctor.facts._held import held, held_by, trained_parameters
from normless.doctor.facts._replay import Outputs, Replay, as_floats, gradient_norms
from normless.doctor.facts._shards import Shards, local
from normless.doctor.watch._broken_step import BrokenStep, Found, NonfiniteOrigin, Repeats
from normless.doctor.watch._hooks import OF_STEPS, Called, CalledMethod, after_first_run, enter_tables
from normless.doctor.watch._loop import Loop
from normless.doctor.watch._measured import Record, StepState
from normless.doctor.watch._training import WatchedTraining
from normless.extras import require_extra
from normless.probes import every
from normless.registry import EXTENSIONS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LossValue = TypeVar("LossValue", bound=Tensor | float)


class WatchWarning(UserWarning):
    """Something goes wrong in a watched training."""


class Watch:
    """Watches a training until its network is deleted or the watch is closed; made by `nl.watch`."""

    def __repr__(self) -> str:
        return f"Watch({type(self._model()).__name__}, step {self.step}, {len(self.findings)} findings)"

    def __init__(self, model: nn.Module, interval: int = 20, call: str | None = None) -> None:
        self._is_measured = every(interval)
        inner = inside_wrappers(model)
        if not trained_parameters(inner):
            name = type(inner).__name__
            raise ValueError(f"Expected a network that trains, but this {name} has no trainable weight.")
        # The hook of the network holds the watch; the watch and the table of watches hold weak references.
        self._model = weakref.ref(inner)
        self._training, self._record = WatchedTraining(_warn), Record()
        self._loop = Loop(self._training)
        weakref.finalize(inner, self._loop.release).atexit = False
        self._names: dict[int, str] = {}
        self._repeats, self._shards = Repeats(self._training.report), Shards()
        # The pass before the last step on other tensors.
        self._strange: Replay | None = None
        self._clock: Callable[[], Optimizer | None] = lambda: None
        self._others, self._thread = set[int](), get_ident()
        self._start_step()
        enter_tables()
        OF_STEPS[id(self)] = self
        self._call = call
        begins, ends = Called(self._enter), Called(lambda _, output: self._loop.passes.expect(output))
        if call is not None:
            self._handles: tuple[Any, ...] = (CalledMethod(inner, call, begins, ends),)
            return
        self._handles = (model.register_forward_pre_hook(begins, with_kwargs=True), model.register_forward_hook(ends))

    def loss(self, value: LossValue) -> LossValue:
        """Record the loss of this step, and return it; the mean counts if there are several in a step."""
        self._now.losses.append(torch.as_tensor(value).detach().float().mean())
        self._now.loss_tensor = weakref.ref(value) if isinstance(value, Tensor) else lambda: None
        self._loop.weigh(value)
        return value

    def diverged(self, step: int, loss: float, optimizer: Optimizer) -> None:
        """Report a loss at which the training stops, also before the optimizer's step."""
        if self._now.losses:
            self._look(optimizer)
        self._training.judge_end(step, loss)

    @property
    def step(self) -> int:
        """The number of steps of the optimizer so far; a training that is resumed sets it."""
        return self._training.step

    @step.setter
    def step(self, step: int) -> None:
        self._training.step = step

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings so far, with numbers, theory and cure; `evidence["step"]` is the step."""
        return tuple(self._training.findings)

    @property
    def messages(self) -> tuple[str, ...]:
        """The sentences of the warnings so far."""
        return tuple(map(_sentence, self.findings))

    @property
    def table(self) -> pd.DataFrame:
        """The measured steps, a row per number: `step`, `quantity`, `place` and `value`.

        The quantities are `loss` and `gradient_norm` of the whole network; `gradient`, the norm of a parameter's
        gradient as the optimizer reads it; `update`, ‖Δw‖/‖w‖ of a parameter with two axes or more; `lost`, the share
        of elements that an update left unchanged, for parameters of 16 bits or fewer; `output`, √E[y²] of a module;
        `off`, the share of input units of a weight layer that are 0 for all examples of this and the last two
        measured steps; `multiplier`, the largest |α|. At most 1000 steps are kept, evenly spaced.
        """
        return self._record.table()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the table as Parquet."""
        require_extra("lab", "Writing Parquet", "pyarrow")
        self.table.to_parquet(path, index=False)

    def plot(self, quantity: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw a quantity of the table over steps, as a line for the whole network or as a colour map for its layers.

        Thin lines mark the steps of findings. If `quantity` is None, it is the loss, or else the gradient's norm.
        """
        marks = [int(finding.evidence["step"]) for finding in self.findings]
        return EXTENSIONS["training_figure"](self.table, quantity, marks, ax)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Remove all hooks; the measurements are kept."""
        for handle in self._handles:
            handle.remove()
        OF_STEPS.pop(id(self), None)
        self._loop.end()
        self._loop.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_step(self) -> None:
        """Reset the data of the last step, and decide whether to measure the next."""
        self._now, self._measures = StepState(), self._is_measured(self.step + 1)
        if (model := self._model()) is not None and (self._measures or not self.step):
            self._name_parameters(model)

    def _name_parameters(self, model: nn.Module) -> None:
        """Record the names of the network's parameters, which change when it is sharded."""
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._shards = Shards.of(model)
        self._loop.begin(model, self._shards.mesh is not None)

    def _enter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if (model := self._model()) is not None:
            self._thread, self._now.seen = get_ident(), Replay.of(model, args, kwargs)
            self._now.passes += 1
            self._loop.enter(model)

    def _held(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return the network's parameters that an optimizer holds, by name; computed once in a step."""
        # Once the network is deleted, other tensors may have the same addresses.
        if id(optimizer) not in self._now.held and self._model() is not None:
            self._now.held[id(optimizer)] = held_by(optimizer, self._names)
        return self._now.held.get(id(optimizer), {}) if self._model() is not None else {}

    def _is_elsewhere(self, optimizer: Optimizer) -> bool:
        """Whether another thread than that of the network's passes takes a step, on none of its parameters."""
        return self._thread != get_ident() and not held_by(optimizer, self._names)

    def _own(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return those of them with a gradient."""
        return {name: own for name, own in self._held(optimizer).items() if own.grad is not None}

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Look at the gradients before the step; with a closure (LBFGS, Lightning), after its first run."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        self._loop.before(optimizer, self._held(optimizer))
        if closure is None:
            self._look(optimizer)
            self._loop.before_update(self._held(optimizer), self._now.gradients, self._now.loss)
            return None

        def look(loss: Any) -> None:
            if isinstance(loss, (Tensor, float)) and not self._now.losses:
                self.loss(loss)
            self._look(optimizer)

        return args[:1], kwargs | {"closure": after_first_run(closure, look)}

    @torch.no_grad()
    def _look(self, optimizer: Optimizer) -> None:
        own, now = self._own(optimizer), self._now
        if not own and not (own := self._look_for_replaced(optimizer)):
            return
        self._training.in_a_row("stale_steps", False)
        now.norms |= self._shards.norms(gradient_norms(own), own)
        if self._measures:
            now.before |= {name: local(known).detach().clone() for name, known in own.items() if known.dim() > 1}
        # If several optimizers share the network, the first one counts the steps as long as it steps.
        if self._clock() is None or id(optimizer) in self._others:
            self._clock = weakref.ref(optimizer)
        if self._clock() is not optimizer:
            self._others.add(id(optimizer))
            return
        self._others.clear()
        self.step += 1
        loss = self._shards.mean(now.losses)
        numbers = as_floats(now.norms | ({} if loss is None else {"": loss}))
        now.loss, now.gradients = numbers.pop("", None), numbers
        self._training.judge_step(now.loss, numbers, self._replayed, self._origin)
        if self._measures:
            self._replayed()

    def _look_for_replaced(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return the network's parameters in an optimizer if they were replaced since the watch began.

        Otherwise count the steps of an optimizer that holds other tensors of the same shapes as the network's.
        """
        model = self._model()
        if model is None or self._now.seen is None or self._now.seen is self._strange:
            return {}
        own, given = [*trained_parameters(model).values()], held(optimizer)
        has_gradients = any(parameter.grad is not None for parameter in own)
        if not has_gradients or sorted(one.shape for one in own) != sorted(one.shape for one in given):
            return {}
        if not {*map(id, own)}.isdisjoint(map(id, given)):
            self._name_parameters(model)
            self._now.held.clear()
            return self._own(optimizer)
        self._strange = self._now.seen
        self._training.in_a_row("stale_steps", True)
        return {}

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer) -> None:
        own, now = self._own(optimizer), self._now
        now.compare(own, self._shards)
        if (model := self._model()) is not None:
            self._loop.after(model, optimizer, self._held(optimizer), now.loss)
        if own and self._clock() is optimizer:
            if self._measures and model is not None:
                layers = self._record.measure(self.step, model, now, self._shards)
                self._training.report("moved_statistics", {}, self._record.moved_statistics(model))
                rate = max(float(group.get("lr", 0.0)) for group in optimizer.param_groups)
                self._training.judge_measurement(layers, rate)
                self._loop.judge_decay(optimizer)
            self._start_step()

    def _replayed(self) -> Outputs | None:
        """Return the outputs of the pass of this step, which is repeated at most once; None if that fails."""
        model, now = self._model(), self._now
        # Restored buffers would stop a backward pass that is running.
        if model is not None and now.outputs is None and not self._loop.passes.is_running:
            now.outputs = self._repeated(model, lambda seen: seen.run(model))
        return now.outputs

    def _repeated(self, model: nn.Module, repeat: Callable[[Replay], Found]) -> Found | None:
        """Run something with the pass of this step; None if that fails, or if the network has no forward to see."""
        if self._now.seen is None and type(model).forward is nn.Module.forward:
            return None
        with in_place_of_forward(model, self._call):
            return self._repeats.run(self._now.seen, repeat)

    def _origin(self, what: str) -> NonfiniteOrigin:
        """Return the origin of the first value of this step that is not finite."""
        model, now = self._model(), self._now
        assert model is not None
        step = BrokenStep(what, now.passes, now.loss_tensor(), now.gradients)
        found = self._repeated(model, lambda seen: step.origin(model, seen))
        return found or step.unseen("no forward pass was seen")


def _sentence(finding: Finding) -> str:
    return f"Step {finding.evidence['step']}: {finding.title}"


def _warn(finding: Finding) -> None:
    # The line that calls the optimizer would not help to find the cause.
    warnings.warn_explicit(_sentence(finding), WatchWarning, "nl.watch", int(finding.evidence["step"]))


def watch(model: nn.Module, interval: int = 20, *, call: str | None = None) -> Watch:
    """Watch a training in any loop, and warn (`WatchWarning`) when something goes wrong.

        watch = nl.watch(model)
        …  # the training loop, unchanged
        watch.table, watch.messages, watch.plot(), watch.save("watch.parquet")

    The watch sees every step of an optimizer that holds the network's parameters: the norms of all gradients, and
    the loss if it is passed to `watch.loss(loss)` or returned by a closure. Every `interval`-th step is measured,
    starting with the first: its forward pass is repeated without gradients, with buffers and random states restored,
    and the weights before and after the step are compared. Copies, pickles and states of the network do not change.

    Of a network sharded by FSDP2 it measures whole weights and the mean loss; every process watches it then.

    Args:
        model: a network that trains, also inside DistributedDataParallel or torch.compile.
        interval: the number of steps from one measured step to the next.
        call: the name of the method that the loop calls in place of `forward`. Without it, a network whose forward
            does not run is judged by its loss, gradients and updates, and by what the loop does with them.

    Returns:
        The watch. It ends with the network, with `watch.close()`, or with a `with` block.

    Raises:
        ValueError: no parameter of the network trains, the interval is below 1, or there is no such method.
    """
    require_network(model)
    return Watch(model, interval, call)
