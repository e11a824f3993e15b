"""Judge the loop of a training: what happens to weights, gradients, modes and optimizers between two steps."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from normless.doctor.findings import Finding
from normless.doctor.rules.modes import is_frozen
from normless.doctor.watch.backward_passes import BackwardPasses
from normless.doctor.watch.clipping import LATE, Clipping
from normless.doctor.watch.labels import Labels
from normless.doctor.watch.schedules import Rates
from normless.doctor.watch.setbacks import Setbacks, sampled
from normless.doctor.watch.spikes import Spikes
from normless.doctor.watch.training import Training

# The number of steps in a row with the same fault of the gradients or the optimizer; in evaluation mode; and with
# gradients of zero. A loss of zero has no gradient.
REPEATED, EVALUATED, FLAT = 5, 10, 10
# The number of setbacks of a weight: a checkpoint may be loaded. The number of passes without any step.
SETBACKS, PASSES = 3, 20
# The number of optimizers after the first one.
CREATED = 4
# The number of passes in a step from which on a sum matters.
SUMMED = 3
# The number of passes without effect in every step: one may be that of a generator through its critic.
LOST = 2
# A parameter that no optimizer holds must stay the same for this number of steps, after as many.
LEFT = 30


@dataclass(eq=False)
class Loop:
    """What was seen between the steps of a training; findings are added to those of the training."""

    training: Training
    passes: BackwardPasses = field(default_factory=BackwardPasses)
    labels: Labels = field(default_factory=Labels)
    _has_optimizer: bool = False
    _optimizers: weakref.WeakSet[Optimizer] = field(default_factory=weakref.WeakSet)
    _created: int = 0
    _spikes: Spikes = field(default_factory=Spikes)
    _clipping: Clipping = field(default_factory=Clipping)
    _ever_held: set[int] = field(default_factory=set)
    _left: dict[str, tuple[int, int]] = field(default_factory=dict)
    _rates: Rates = field(default_factory=Rates)
    _setbacks: Setbacks = field(default_factory=Setbacks)
    _weights: dict[str, Tensor] = field(default_factory=dict)
    _runs: dict[str, int] = field(default_factory=dict)
    _with_state: set[str] = field(default_factory=set)
    _judged: int = 0
    _entered: int = 0
    _has_stepped: bool = False
    _trains: bool | None = None
    _has_trained: bool = False

    def begin(self, model: nn.Module, is_sharded: bool) -> None:
        """Choose the parameters to follow; parts of sharded ones cannot be compared."""
        parameters = (
            {} if is_sharded else {name: known for name, known in model.named_parameters() if _is_real(known)}
        )
        self.passes.follow(parameters)
        self._weights = sampled(parameters)
        if not self._has_stepped:
            self._setbacks.begin(self._weights)
        self._has_trained |= model.training

    def release(self) -> None:
        """Forget the weights, so that their memory can be freed."""
        self.passes, self._setbacks, self._weights = BackwardPasses(), Setbacks(), {}
        self._clipping = Clipping()

    def enter(self, model: nn.Module, step: int) -> Iterator[Finding]:
        """Look at the modes of a pass with gradients."""
        self._trains = model.training or bool(self._trains)
        self._entered += 1
        self._clipping.look()
        if self._clipping.late >= LATE:
            evidence = {"step": step, "steps": self._clipping.late}
            yield from self.training.new("clipped_late", 0.8, [""], evidence)
        if not self._has_stepped and self.passes.discarded >= PASSES:
            yield from self._never_stepped(step)

    def weigh(self, loss: object) -> None:
        """Look at a loss before its backward pass: at its factor and its labels."""
        self.passes.weigh(loss)
        self.labels.add(loss)

    def end(self, step: int) -> Iterator[Finding]:
        """Report a training without any step."""
        if not self._has_stepped and self.passes.count >= PASSES:
            yield from self._never_stepped(step)

    def _never_stepped(self, step: int) -> Iterator[Finding]:
        # Weights may be updated by hand.
        if not self._setbacks.moved(self._weights):
            yield from self.training.new("never_stepped", 0.98, [""], {"step": step, "passes": self.passes.count})

    def before(self, optimizer: Optimizer, held: Mapping[str, Tensor], step: int) -> Iterator[Finding]:
        """Look at weights and states before a step of held parameters, also if it calculates the gradients."""
        if not held:
            return
        times = self._setbacks.before(self._weights, optimizer)
        has_said = any(known.kind == "set_back" for known in self.training.findings)
        back = [] if has_said else [name for name, number in times.items() if number >= SETBACKS]
        evidence: dict[str, Any] = {"step": step, "times": max(times.values(), default=0)}
        yield from self.training.new("set_back", 0.9, back, evidence | {"share": self._setbacks.share})
        followed = [name for name in self.passes.followed if name in held]
        lost = [name for name in followed if name in self._with_state and not _has_state(optimizer, held[name])]
        runs = self._count("state", bool(lost))
        if runs >= REPEATED:
            words = {"optimizer": type(optimizer).__name__}
            yield from self.training.new("lost_state", 0.9, [""], {"step": step, "steps": runs}, **words)
        # Of those that are gone nothing is kept.
        is_new = self._has_optimizer and optimizer not in self._optimizers
        self._has_optimizer = True
        self._optimizers.add(optimizer)
        if lost and is_new and runs == 1:
            self._created += 1
            evidence = {"step": step, "times": self._created}
            where = [""] if self._created >= CREATED else []
            yield from self.training.new("recreated", 0.7, where, evidence, optimizer=type(optimizer).__name__)
        classes = self.labels.classes
        yield from self.training.new("sorted_data", 0.85, [""] if classes else [], {"step": step, "classes": classes})

    def before_update(
        self, held: Mapping[str, Tensor], norms: Mapping[str, float], loss: float | None, step: int
    ) -> Iterator[Finding]:
        """Look at the gradients that the optimizer reads; `norms` are those of its parameters."""
        arrived = [name for name in self.passes.ended if name in held]
        kept = self.passes.kept(name for name in self.passes.followed if name in held)
        runs = self._count("kept", bool(kept))
        if runs >= REPEATED:
            yield from self.training.new("kept_gradients", 0.95, kept, {"step": step, "steps": runs})
        # Every pass but the last; a pass that looks for adversarial inputs is not one of a loss that was given.
        lost = self.passes.lost
        runs = self._count("lost", lost >= LOST and lost + 1 == self._entered)
        if runs >= REPEATED:
            yield from self.training.new("lost_passes", 0.96, [""], {"step": step, "steps": runs, "passes": lost + 1})
        runs = self._count("scaled", self.passes.is_scaled(name for name in self.passes.followed if name in held))
        if runs >= REPEATED:
            evidence = {"step": step, "steps": runs, "scale": self.passes.scale}
            yield from self.training.new("never_unscaled", 0.93, [""], evidence)
        tiny = self._clipping.tiny(norms, self.training.updates) if norms else None
        if tiny is not None:
            yield from self.training.new("clipped_tiny", 0.9, [""], {"step": step, "norm": tiny})
        if not held or not self.passes.count:
            return
        is_flat = not any(norms.get(name, 0.0) for name in held)
        has_arrived = is_flat and any(bool(self.passes.ended[name]) for name in arrived)
        runs = self._count("cleared", has_arrived)
        if runs >= REPEATED:
            yield from self.training.new("cleared_gradients", 0.98, [""], {"step": step, "steps": runs})
        has_loss = loss is not None and loss != 0
        runs = self._count("flat", is_flat and bool(norms) and not has_arrived and has_loss)
        if runs >= FLAT:
            evidence = {"step": step, "steps": runs, "loss": float(loss or 0.0)}
            yield from self.training.new("zero_gradients", 0.95, [""], evidence)

    def after(
        self, model: nn.Module, optimizer: Optimizer, held: Mapping[str, Tensor], loss: float | None, step: int
    ) -> Iterator[Finding]:
        """Look at rates, modes and states after a step of held parameters."""
        if not held:
            return
        self._has_stepped = True
        followed = [name for name in self.passes.followed if name in held]
        self._with_state |= {name for name in followed if _has_state(optimizer, held[name])}
        # A sum of gradients is right at a rate that was chosen for it.
        if self._entered >= SUMMED and not self.passes.is_divided and self.training.is_failing:
            passes = min(self.passes.added(followed), self._entered)
            where = [""] if passes >= SUMMED else []
            yield from self.training.new("summed_passes", 0.6, where, {"step": step, "passes": passes})
        self._entered = 0
        self.passes.stepped(followed)
        self._setbacks.after(self._weights, optimizer)
        yield from self._judge_size(optimizer, step)
        self._clipping.stepped(held[name] for name in followed)
        self._ever_held |= {*map(id, held.values())}
        if step and step % LEFT == 0 and step != self._judged:
            self._judged = step
            yield from self._judge_held(model, step)
        for kind, where, evidence in self._rates.judge(optimizer, held, loss):
            yield from self.training.new(kind, 0.9, where[:1], {**evidence, "step": step, "parameters": len(where)})
        if self._trains is None:
            return
        self._has_trained |= self._trains
        runs = self._count("evaluation", self._has_trained and not self._trains)
        self._trains = None
        if runs == EVALUATED:
            yield from self.training.new(
                "left_in_evaluation", 0.9, _changed_by_mode(model)[:1], {"step": step, "steps": runs}
            )

    def _judge_size(self, optimizer: Optimizer, step: int) -> Iterator[Finding]:
        """Report a jump of the loss shortly after a step that was far larger than those before, at the same rate."""
        rate = optimizer.param_groups[0].get("lr")
        if "betas" not in optimizer.param_groups[0] or not isinstance(rate, float) or not rate:
            return
        self._spikes.add(step, self._setbacks.size() / rate)
        jumps = [
            int(known.evidence["step"]) for known in self.training.findings if known.kind in ("jump", "diverged")
        ]
        spike = self._spikes.before(jumps[-1]) if jumps else None
        if spike is not None:
            evidence = {"step": jumps[-1], "at": spike[0], "ratio": spike[1]}
            yield from self.training.new("update_spike", 0.92, [""], evidence)

    def _judge_held(self, model: nn.Module, step: int) -> Iterator[Finding]:
        """Report parameters with gradients that no optimizer holds and nothing else has changed."""
        before, self._left = (
            self._left,
            {
                name: (id(parameter), parameter._version)
                for name, parameter in model.named_parameters()
                if parameter.requires_grad and id(parameter) not in self._ever_held and parameter.grad is not None
            },
        )
        same = [name for name, now in self._left.items() if before.get(name) == now]
        yield from self.training.new("held_by_none", 0.9, same, {"step": step})

    def _count(self, what: str, holds: bool) -> int:
        """Return for how many steps in a row something holds."""
        self._runs[what] = self._runs.get(what, 0) + 1 if holds else 0
        return self._runs[what]


def frozen_means(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the running means of frozen norms, by the name of the norm."""
    norms = ((name, module) for name, module in model.named_modules() if is_frozen(module))
    means = ((name, getattr(norm, "running_mean", None)) for name, norm in norms)
    return {name: mean.clone() for name, mean in means if isinstance(mean, Tensor)}


def _has_state(optimizer: Optimizer, parameter: Tensor) -> bool:
    state = optimizer.state.get(parameter, {})
    return any(isinstance(value, Tensor) for value in state.values())


def _changed_by_mode(model: nn.Module) -> list[str]:
    """Return the modules that evaluation mode changes: dropout, and norms with statistics that are not frozen."""
    return [
        name
        for name, module in model.named_modules()
        if not module.training
        and (
            (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0)
            or (isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and module.dropout > 0)
            or (isinstance(getattr(module, "running_mean", None), Tensor) and not is_frozen(module))
        )
    ]


def _is_real(parameter: Tensor) -> bool:
    return not is_lazy(parameter) and not parameter.is_meta
