"""Judge the loop of a training: what happens to weights, gradients, modes and optimizers between two steps."""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from normless.doctor._findings import FindingEvidence
from normless.doctor.facts._held import DECAY, decay_per_step, trained_parameters
from normless.doctor.rules._modes import is_frozen
from normless.doctor.watch._gradients import BackwardPasses, Clipping
from normless.doctor.watch._setbacks import Setbacks
from normless.doctor.watch._training import WatchedTraining

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
# Batches of at least LEAST labels are judged; only the first READ batches are read.
LEAST, READ = 4, 400
# The least number of steps at a rate of 0, or at a decayed rate; schedules may end with fewer of them, or with this
# share of all steps at 0.
IDLE, END = 20, 0.05
# A rate below this share of the largest so far, or of the one before a warm-up, changes nothing; the steps above FAST
# times the largest rate are those that train.
TINY, FAST = 1e-3, 1e-2
# A decay is too early if this many times as many steps follow it as came before it; one that is exponential over the
# whole training reaches 1e-7 then. A warm-up that has stayed at a tiny rate for WAITED steps is never stepped.
LATER, WAITED = 2, 100
# A loss still falls if the median of the last 20 losses is below this share of that of the 20 losses before.
WINDOW, FALLS = 40, 0.98


@dataclass
class ObservedRate:
    """The learning rate of a group over the steps so far: the largest, and numbers of steps, in all or in a row."""

    _highest: float = 0.0
    _last: float = -1.0
    _steps: int = 0
    _fast: int = 0
    _runs: dict[str, int] = field(default_factory=dict)
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def judge(self, rate: float, initial: float, loss: float | None) -> tuple[str, FindingEvidence] | None:
        """Add a step; return a kind and numbers if the rate does not train."""
        self._steps, self._highest = self._steps + 1, max(self._highest, rate)
        if rate > FAST * self._highest:
            self._fast += 1
            self._losses.extend([] if loss is None else [loss])
        holds = {"zero": rate == 0, "tiny": rate <= TINY * self._highest, "same": rate == self._last}
        self._runs = {name: (self._runs.get(name, 0) + 1) * held for name, held in holds.items()}
        self._last = rate
        zero, tiny, same = self._runs.values()
        past, half = [*self._losses], WINDOW // 2
        # A plateau shows only in enough losses at a rate that trains.
        fell = len(past) < WINDOW or median(past[half:]) < FALLS * median(past[:half])
        faults = {
            "zero_rate_in_steps": (zero >= max(IDLE, END * self._steps), zero),
            "unstarted_warm_up": (self._highest <= TINY * initial and same >= WAITED, same),
            "early_decay": (tiny >= max(IDLE, LATER * self._fast) and fell, self._fast),
        }
        evidence = {"rate": rate, "highest": self._highest, "initial": initial, "later": tiny}
        found = ((kind, evidence | {"steps": steps}) for kind, (holds, steps) in faults.items() if holds)
        return next(found, None)


@dataclass(eq=False)
class Loop:
    """What was seen between the steps of a training; findings are added to those of the training."""

    training: WatchedTraining
    passes: BackwardPasses = field(default_factory=BackwardPasses)
    _classes: set[int] = field(default_factory=set)
    _read: int = 0
    _optimizers: weakref.WeakSet[Optimizer] = field(default_factory=weakref.WeakSet)
    _created: int = 0
    _clipping: Clipping = field(default_factory=Clipping)
    _ever_held: set[int] = field(default_factory=set)
    _left: dict[str, tuple[int, int]] = field(default_factory=dict)
    _rates: dict[str, ObservedRate] = field(default_factory=lambda: defaultdict(ObservedRate))
    _setbacks: Setbacks = field(default_factory=Setbacks)
    _with_state: set[str] = field(default_factory=set)
    _reached: set[str] = field(default_factory=set)
    _judged: int = 0
    _entered: int = 0
    _has_stepped: bool = False
    _trains: bool | None = None
    _has_trained: bool = False

    def begin(self, model: nn.Module, is_sharded: bool) -> None:
        """Choose the parameters to follow; parts of sharded ones cannot be compared."""
        own = {} if is_sharded else trained_parameters(model)
        own = {name: known for name, known in own.items() if not is_lazy(known) and not known.is_meta}
        self.passes.noticed = lambda: self._judge_stepped(self.passes.discarded)
        self.passes.follow(own)
        self._setbacks.follow(own, is_first=not self._has_stepped)
        self._has_trained |= model.training

    def release(self) -> None:
        """Forget the weights, so that their memory can be freed."""
        self.passes, self._setbacks, self._clipping = BackwardPasses(), Setbacks(), Clipping()

    def enter(self, model: nn.Module) -> None:
        """Look at the modes of a pass with gradients, and at the gradients that the last step has read."""
        self._trains = model.training or bool(self._trains)
        self._entered += 1
        if (is_late := self._clipping.is_late()) is not None:
            self.training.in_a_row("clipped_late", is_late)
        self._judge_stepped(self.passes.discarded)

    def weigh(self, loss: object) -> None:
        """Look at a loss before its backward pass: at its factor, and at the labels of torch's cross-entropy."""
        self.passes.weigh(loss)
        labels = None
        # The history of the mean of a cross-entropy holds the labels; after the backward pass, it holds no values.
        with suppress(RuntimeError):
            labels = getattr(getattr(loss, "grad_fn", None), "_saved_target", None)
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.numel() < LEAST:
            return
        if self._read < READ:
            self._read += 1
            low, high = map(int, labels.aminmax())
            self._classes = {*self._classes, low} if low == high else set()
            self.training.in_a_row("sorted_data", low == high, {"classes": len(self._classes)})

    def end(self) -> None:
        """Report a training without any step."""
        self._judge_stepped(self.passes.count)

    def _judge_stepped(self, passes: int) -> None:
        # Weights may be updated by hand.
        if not self._has_stepped and passes >= PASSES and not self._setbacks.moved():
            self.training.report("never_stepped", {"passes": self.passes.count})

    def before(self, optimizer: Optimizer, held: Mapping[str, Tensor]) -> None:
        """Look at weights and states before a step of held parameters, also if it calculates the gradients."""
        if not held:
            return
        step, name_of_class = {"step": self.training.step + 1}, type(optimizer).__name__
        times = self._setbacks.before(optimizer)
        back = [name for name, number in times.items() if number >= SETBACKS]
        if back and not self.training.steps_of("set_back"):
            evidence = {**step, "times": max(times.values()), "share": self._setbacks.share}
            self.training.report("set_back", evidence, back)
        known = [name for name in self._followed(held) if name in self._with_state]
        lost = any(not _has_state(optimizer, held[name]) for name in known)
        steps = self.training.in_a_row("lost_state", lost, step, optimizer=name_of_class)
        # Of those that are gone nothing is kept.
        is_new = optimizer not in self._optimizers
        self._optimizers.add(optimizer)
        self._created += is_new and steps == 1
        if is_new and steps == 1 and self._created >= CREATED:
            self.training.report("recreated", {**step, "times": self._created}, optimizer=name_of_class)

    def before_update(self, held: Mapping[str, Tensor], norms: Mapping[str, float], loss: float | None) -> None:
        """Look at the gradients that the optimizer reads; `norms` are those of its parameters."""
        passes, followed, training = self.passes, self._followed(held), self.training
        training.in_a_row("kept_gradients", passes.kept(followed), among=followed)
        if not passes.sees_forward:
            self._reached |= {name for name, own in held.items() if own.grad is not None}
        # Every pass but the last; a pass that looks for adversarial inputs is not one of a loss that was given.
        is_lost = passes.lost >= LOST and passes.lost + 1 == self._entered
        training.in_a_row("lost_passes", is_lost, {"passes": passes.lost + 1})
        training.in_a_row("never_unscaled", passes.is_scaled(followed), {"scale": passes.scale})
        if norms and (norm := self._clipping.tiny(norms, training.updates)) is not None:
            training.report("clipped_tiny", {"norm": norm})
        if not held or not passes.count:
            return
        is_flat = not any(norms.get(name, 0.0) for name in held)
        has_arrived = is_flat and any(bool(largest) for name, largest in passes.ended.items() if name in held)
        # Zeroing leaves no negative zeros.
        gradients = [held[name].grad for name in followed] if has_arrived else []
        is_product = any(bool(gradient.signbit().any()) for gradient in gradients if gradient is not None)
        training.in_a_row("cleared_gradients", has_arrived and not is_product)
        training.in_a_row("overflowing_norm", has_arrived and is_product)
        is_zero = is_flat and bool(norms) and not has_arrived and bool(loss)
        training.in_a_row("zero_gradients", is_zero, {"loss": loss or 0.0})

    def after(self, model: nn.Module, optimizer: Optimizer, held: Mapping[str, Tensor], loss: float | None) -> None:
        """Look at rates, modes and states after a step of held parameters."""
        if not held:
            return
        self._has_stepped = True
        followed = self._followed(held)
        self._with_state |= {name for name in followed if _has_state(optimizer, held[name])}
        # A sum of gradients is right at a rate that was chosen for it.
        if self._entered >= SUMMED and not self.passes.is_divided and self.training.is_failing:
            passes = min(self.passes.added(followed), self._entered)
            if passes >= SUMMED:
                self.training.report("summed_passes", {"passes": passes})
        self._entered = 0
        self.passes.stepped(followed)
        self._setbacks.after(optimizer)
        rate = optimizer.param_groups[0].get("lr")
        if "betas" in optimizer.param_groups[0] and isinstance(rate, float) and rate:
            self.training.judge_size(self._setbacks.size() / rate)
        self._clipping.stepped(held[name] for name in followed)
        self._judge_held(model, held)
        self._judge_rates(optimizer, held, loss)
        if self._trains is not None:
            self._has_trained |= self._trains
            is_left, self._trains = self._has_trained and not self._trains, None
            self.training.in_a_row("left_in_evaluation", _changed_by_mode(model)[:1] if is_left else [])

    def _judge_rates(self, optimizer: Optimizer, held: Mapping[str, Tensor], loss: float | None) -> None:
        names = {id(parameter): name for name, parameter in held.items() if parameter.requires_grad}
        for group in optimizer.param_groups:
            own = [names[id(known)] for known in group["params"] if id(known) in names]
            rate, initial = group.get("lr"), group.get("initial_lr", 0.0)
            # A rate in a tensor would have to be read from the device.
            if not own or rate is None or isinstance(rate, Tensor):
                continue
            before_warm_up = 0.0 if isinstance(initial, Tensor) else float(initial)
            if (fault := self._rates[own[0]].judge(float(rate), before_warm_up, loss)) is not None:
                self.training.report(fault[0], {**fault[1], "parameters": len(own)}, own[:1])

    def judge_decay(self, optimizer: Optimizer) -> None:
        """Report weight decay that is no regularization, after a measured step."""
        per_step = decay_per_step(optimizer)
        decay = max(float(group.get("weight_decay", 0.0)) for group in optimizer.param_groups)
        self.training.in_a_row("excessive_decay", per_step > DECAY, {"per_step": per_step, "decay": decay})

    def _judge_held(self, model: nn.Module, held: Mapping[str, Tensor]) -> None:
        """Report parameters with gradients that no optimizer holds and nothing else has changed."""
        self._ever_held |= {*map(id, held.values())}
        if self.training.step % LEFT or self.training.step == self._judged:
            return
        before, self._judged = self._left, self.training.step
        self._left = {
            name: (id(own), own._version)
            for name, own in trained_parameters(model).items()
            if id(own) not in self._ever_held and own.grad is not None
        }
        self.training.report("held_by_none", {}, [n for n, now in self._left.items() if before.get(n) == now])
        # Of a network whose passes are seen, `diagnose` names the modules that no pass calls.
        if self.training.step >= 2 * LEFT and not self.passes.sees_forward:
            idle = [name for name, own in held.items() if own.requires_grad and name not in self._reached]
            self.training.report("without_gradient", {"held": len(held)}, idle)

    def _followed(self, held: Mapping[str, Tensor]) -> list[str]:
        return [name for name in self.passes.followed if name in held]


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
