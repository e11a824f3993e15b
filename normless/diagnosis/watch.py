"""`nl.watch`: a training watched by hooks on the network's forward and on the steps of its optimizer."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import pandas as pd
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from normless._internal.arguments import require_network
from normless._internal.copying import is_sharded
from normless.diagnosis.broken_step import BrokenStep, Origin
from normless.diagnosis.findings import Finding
from normless.diagnosis.hooks import Entered, weakly
from normless.diagnosis.modes import is_frozen
from normless.diagnosis.record import Record
from normless.diagnosis.replay import Outputs, Replay, as_floats, gradient_norms, rounded_away, update_ratio
from normless.diagnosis.training import BATCHES, Measured, Training
from normless.nn import ResidualSum, ScalarAffine
from normless.probes import every

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Loss = TypeVar("Loss", bound=Tensor | float)

# Steps of an optimizer of other tensors after which it counts as stale.
STRANGE = 3
_UNSEEN = "no forward pass was seen; of a compiled network watch what torch.compile returned"
# What torch.compile and DistributedDataParallel call the network inside them.
_WRAPPED = ("_orig_mod", "module")


class WatchWarning(UserWarning):
    """Something goes wrong in a watched training."""


class Watch:
    """A training that is watched until its network is deleted or the watch is closed; made by `nl.watch`.

    Attributes:
        step: the number of the optimizer's steps so far.
    """

    def __init__(self, model: nn.Module, interval: int = 20) -> None:
        self._is_measured, self.step = every(interval), 0
        inner = model
        while len(children := dict(inner.named_children())) == 1 and (name := next(iter(children))) in _WRAPPED:
            inner = children[name]
        if not any(parameter.requires_grad for parameter in inner.parameters()):
            raise ValueError(
                f"Expected a network that trains, but this {type(inner).__name__} has no trainable weight."
            )
        if is_sharded(inner):
            raise ValueError(
                f"The weights of this {type(inner).__name__} are sharded, so that norms of them are not seen. "
                "Whether the optimizer holds them is said by nl.diagnose(model, batch, optimizer=…), or by a watch "
                "that began before fully_shard."
            )
        # The network owns the watch, by its hook; the watch and torch's table of hooks own nothing.
        self._model = weakref.ref(inner)
        self._training, self._record = Training(), Record()
        self._off: dict[str, list[Tensor]] = {}
        self._names: dict[int, str] = {}
        self._is_blind = self._is_sharded = False
        self._statistics: dict[str, Tensor] = {}
        # Steps of an optimizer of other tensors, and the pass before the last of them.
        self._strange, self._counted = 0, cast(Replay | None, None)
        self._clock: Callable[[], Optimizer | None] = lambda: None
        self._others: set[int] = set()
        self._start_step()
        self._handles = [model.register_forward_pre_hook(Entered(self._enter), with_kwargs=True)]
        for register, method in (
            (register_optimizer_step_pre_hook, self._before_step),
            (register_optimizer_step_post_hook, self._after_step),
        ):
            handle = register(weakly(method))
            weakref.finalize(self, handle.remove).atexit = False
            self._handles.append(handle)

    def loss(self, value: Loss) -> Loss:
        """Tell the watch the loss of this step, and return it; of several in a step the mean counts."""
        self._now.losses.append(torch.as_tensor(value).detach().float().mean())
        self._now.told = weakref.ref(value) if isinstance(value, Tensor) else None
        return value

    def diverged(self, step: int, loss: float, optimizer: Optimizer) -> None:
        """Say what is known of the loss at which a training stops, also before the optimizer's step."""
        if self._now.losses:
            self._look(optimizer)
        self._say(self._training.judge_end(step, loss))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What went wrong so far, with numbers, theory and cure; `evidence["step"]` is the step."""
        return tuple(self._training.findings)

    @property
    def messages(self) -> tuple[str, ...]:
        """The sentences that were said so far."""
        return tuple(map(_sentence, self.findings))

    @property
    def table(self) -> pd.DataFrame:
        """The measured steps, a row per number: `step`, `quantity`, `place` and `value`.

        Quantities: `loss` and `gradient_norm` of the whole network; `gradient`, the norm of a parameter's gradient as
        the optimizer reads it; `update`, ‖Δw‖/‖w‖ of a parameter of two axes or more, and `lost`, of one of 16 bits
        or fewer, the share of elements that the update left as they were; `output`, √E[y²] of a module; `off`, the
        share of units that a weight layer reads as 0 for all examples of this and the last two measured steps;
        `multiplier`, the largest |α|. At most 1000 steps are kept, evenly spaced.
        """
        return self._record.table()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the table as Parquet."""
        self._record.save(Path(path))

    def plot(self, quantity: str | None = None, ax: Axes | None = None) -> Axes:
        """Draw a quantity of the table over steps: a line for the whole network, a map in colours for its layers.

        Thin lines are at the steps of findings. `quantity` is the loss if None, or without one the gradient's norm.
        """
        return self._record.plot(quantity, [int(finding.evidence["step"]) for finding in self.findings], ax)

    def close(self) -> None:
        """Remove all hooks; what was measured stays."""
        for handle in self._handles:
            handle.remove()
        self._start_step()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_step(self) -> None:
        """Forget the last step, and decide whether the next is measured."""
        self._now, self._measures = _Step(), self._is_measured(self.step + 1)
        model = self._model()
        if model is not None and (self._measures or not self.step):
            self._name_parameters(model)

    def _name_parameters(self, model: nn.Module) -> None:
        """Learn the network's parameters, which are others after it was sharded."""
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._is_sharded = is_sharded(model)

    def _enter(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        model = self._model()
        if model is not None and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self._now.seen = Replay.of(model, args, kwargs)
            self._now.passes += 1

    def _own(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The network's parameters with a gradient that an optimizer holds, by name."""
        if self._model() is None:
            # Its addresses may be those of other tensors by now.
            return {}
        held = (
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        )
        return {name: parameter for parameter in held if (name := self._names.get(id(parameter))) is not None}

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Look at the gradients before the step; with a closure (LBFGS, Lightning), after its first run."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._look(optimizer)
            return None
        runs = count()

        def watched() -> Any:
            loss = closure()
            if next(runs) == 0:
                if isinstance(loss, (Tensor, float)) and not self._now.losses:
                    self.loss(loss)
                self._look(optimizer)
            return loss

        if "closure" in kwargs:
            return args, kwargs | {"closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    @torch.no_grad()
    def _look(self, optimizer: Optimizer) -> None:
        own, now = self._own(optimizer), self._now
        if not own and not (own := self._look_at_stranger(optimizer)):
            return
        if self._is_sharded:
            # Processes would have to read the norms together.
            self._say(self._training.sharded(self.step))
            return
        self._strange = 0
        now.norms |= gradient_norms(own)
        if self._measures:
            now.before |= {name: parameter.detach().clone() for name, parameter in own.items() if parameter.dim() > 1}
        # Where several optimizers share the network, the first counts the steps, as long as it steps.
        if self._clock() is None or id(optimizer) in self._others:
            self._clock = weakref.ref(optimizer)
        if self._clock() is not optimizer:
            self._others.add(id(optimizer))
            return
        self._others.clear()
        self.step += 1
        numbers = as_floats(now.norms | ({"": torch.stack(now.losses).mean()} if now.losses else {}))
        now.loss, now.gradients = numbers.pop("", None), numbers
        self._say(self._training.judge_step(self.step, now.loss, numbers, self._replayed, self._origin))
        if self._measures:
            self._replayed()

    def _look_at_stranger(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The network's parameters that an optimizer holds, where these are others since the watch began.

        Else count the steps of an optimizer of tensors like the network's, while no optimizer holds the network's.
        """
        model = self._model()
        if model is None or self._now.seen is None or self._now.seen is self._counted:
            return {}
        own = [parameter for parameter in model.parameters() if parameter.requires_grad]
        held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        has_gradients = any(parameter.grad is not None for parameter in own)
        if not has_gradients or sorted(map(_shape, own)) != sorted(map(_shape, held)):
            return {}
        if not {*map(id, own)}.isdisjoint(map(id, held)):
            self._name_parameters(model)
            return self._own(optimizer)
        self._strange, self._counted = self._strange + 1, self._now.seen
        if self._strange >= STRANGE:
            self._say(self._training.stale(self.step, self._strange))
        return {}

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        own, now = self._own(optimizer), self._now
        for name in [name for name in own if name in now.before]:
            before = now.before.pop(name)
            now.updates[name] = update_ratio(before, own[name])
            counts = rounded_away(before, own[name])
            if counts is not None:
                now.lost[name] = counts[0] / counts[1]
        if own and self._clock() is optimizer:
            if self._measures:
                self._measure(max(float(group.get("lr", 0.0)) for group in optimizer.param_groups))
            self._start_step()

    def _replayed(self) -> Outputs | None:
        """The pass of this step once more, made at most once; None where that is not possible, which is said."""
        model, now = self._model(), self._now
        if model is None or self._is_blind or now.outputs is not None:
            return now.outputs
        try:
            if now.seen is None:
                raise ValueError(_UNSEEN)
            now.outputs = now.seen.run(model)
        except Exception as error:
            self._cannot_replay(error)
        return now.outputs

    def _origin(self, what: str) -> Origin:
        """Where the first value of this step that is not finite arises."""
        model, now = self._model(), self._now
        assert model is not None
        told = None if now.told is None else now.told()
        step = BrokenStep(what, None if self._is_blind else now.seen, now.passes, told, now.gradients)
        try:
            if step.seen is None and not self._is_blind:
                raise ValueError(_UNSEEN)
            return step.origin(model)
        except Exception as error:
            self._cannot_replay(error)
            return replace(step, seen=None).origin(model)

    def _cannot_replay(self, error: Exception) -> None:
        self._is_blind = True
        self._say(self._training.cannot_replay(self.step, str(error)))

    def _measure(self, rate: float) -> None:
        """Record this step, and look at it together with those measured before."""
        model, now = self._model(), self._now
        assert model is not None
        multipliers = {
            f"{path}.multiplier": module.multiplier.abs().max()
            for path, module in model.named_modules()
            if isinstance(module, (ScalarAffine, ResidualSum))
            and module.multiplier is not None
            and module.multiplier.requires_grad
        }
        off = {} if now.outputs is None else self._units_off(now.outputs.off)
        sizes = {} if now.outputs is None else now.outputs.sizes
        output, shares, multiplier, update, lost = map(as_floats, (sizes, off, multipliers, now.updates, now.lost))
        # A weight of zeros has no update relative to it, and one with a gradient of zeros none to lose.
        update, lost = (
            {name: ratio for name, ratio in ratios.items() if isfinite(ratio)} for ratios in (update, lost)
        )
        total = sum(norm**2 for norm in now.gradients.values()) ** 0.5
        whole = {"gradient_norm": {"": total}} | ({} if now.loss is None else {"loss": {"": now.loss}})
        layers = {"output": output, "off": shares, "gradient": now.gradients, "update": update, "lost": lost}
        self._record.add(self.step, whole | layers | {"multiplier": multiplier})
        self._say(self._training.moved_statistics(self.step, self._moved_statistics(model)))
        measured = Measured(output, shares, multiplier, update, lost, rate)
        self._say(self._training.judge_measurement(self.step, measured))

    def _moved_statistics(self, model: nn.Module) -> list[str]:
        """The frozen norms whose running means have changed since the last measured step."""
        means = {
            name: module.running_mean
            for name, module in model.named_modules()
            if is_frozen(module) and _has_mean(module)
        }
        before, self._statistics = self._statistics, {name: mean.clone() for name, mean in means.items()}
        same = {name: mean.shape == before[name].shape for name, mean in means.items() if name in before}
        return [name for name, is_same in same.items() if is_same and not torch.equal(means[name], before[name])]

    def _units_off(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The shares of units that are off in this and the measured steps before."""
        for path, mask in masks.items():
            before = [previous for previous in self._off.get(path, []) if previous.shape == mask.shape]
            self._off[path] = [*before, mask][-BATCHES:]
        return {path: torch.stack(self._off[path]).all(0).float().mean() for path in masks}

    def _say(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            # The line that calls the optimizer says nothing about the cause.
            warnings.warn_explicit(_sentence(finding), WatchWarning, "nl.watch", self.step)


@dataclass
class _Step:
    """What is known of the current step: tensors, and the numbers that were read from them."""

    losses: list[Tensor] = field(default_factory=list)
    norms: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)
    updates: dict[str, Tensor] = field(default_factory=dict)
    lost: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    seen: Replay | None = None
    passes: int = 0
    told: weakref.ref[Tensor] | None = None
    outputs: Outputs | None = None


def _has_mean(module: nn.Module) -> bool:
    return isinstance(getattr(module, "running_mean", None), Tensor)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)


def _sentence(finding: Finding) -> str:
    return f"Step {finding.evidence['step']}: {finding.title}"


def watch(model: nn.Module, interval: int = 20) -> Watch:
    """Watch a training in any loop, and warn in a sentence (`WatchWarning`) when something goes wrong.

        watch = nl.watch(model)
        …  # the training, as it is
        watch.table, watch.messages, watch.plot(), watch.save("watch.parquet")

    Every step of an optimizer that holds the network's parameters is seen: the loss, if it is passed by
    `watch.loss(loss)` or returned by a closure, and the norms of all gradients. Every `interval`-th step is measured,
    the first included: its forward pass is made once more without gradients, with buffers and random states restored,
    and the weights are compared with those after the step. The network's copies, pickles and states are not changed.

    Args:
        model: a network that trains; also what DistributedDataParallel or torch.compile made of it.
        interval: the number of steps from one measured step to the next.

    Returns:
        The watch. It lasts as long as the network, or to `watch.close()` or the end of a `with` block.

    Raises:
        ValueError: nothing of the network is trained, its weights are sharded, or the interval is below 1.
    """
    require_network(model)
    return Watch(model, interval)
