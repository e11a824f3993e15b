"""The findings of a training, and its rules: loss, gradients and size of every step, and measured steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, isfinite, log, sqrt
from statistics import median
from typing import Any

from normless.doctor._findings import Finding, FindingEvidence, finding
from normless.doctor.facts._replay import Outputs, as_floats
from normless.doctor.rules._layers import DEAD
from normless.doctor.watch._broken_step import NonfiniteOrigin

Numbers = Mapping[str, float]
Replayed = Callable[[], Outputs | None]
"""Repeats the pass of the current step."""
FindOrigin = Callable[[str], NonfiniteOrigin]
"""Returns the origin of the first value of the current step that is not finite, in the `loss` or a `gradient`."""

# How often in a row a fault must hold until it is reported: in steps of the optimizer, in batches of labels, in first
# passes after a step, and in measured steps. A loss of zero has no gradient.
IN_A_ROW = {
    **dict.fromkeys(("lost_state", "kept_gradients", "lost_passes", "never_unscaled", "cleared_gradients"), 5),
    **dict.fromkeys(("zero_gradients", "left_in_evaluation"), 10),
    "stale_steps": 3,
    "sorted_data": 20,
    **dict.fromkeys(("clipped_late", "overflowing_norm"), 5),
    "closed_multipliers": 5,
    **dict.fromkeys(("rounded_updates", "large_updates", "small_updates", "excessive_decay"), 3),
}
# A series is judged from FEW numbers on, and compared with its last WINDOW numbers.
FEW, WINDOW = 10, 100
# The least factors by which a layer's output or gradient jumps; gradients vary more.
OUTPUT, GRADIENT = 3.0, 10.0
# The least jump of a loss, as a share of the first losses.
RISE = 0.1
# The least factor of a spike, as Adam's steps have after gradients that were small for long; the number of steps that
# it is compared with, and of those within which a jump of the loss may follow it.
SPIKE, STEPS, LATER = 2.5, 30, 20
# Bounds on ‖Δw‖/‖w‖ of a step: above LARGE, ten steps replace the weights; below SMALL, float32 rounds the update
# away; below SHARE times that of the median layer, the layer hardly trains.
LARGE, SMALL, SHARE = 0.1, 1e-7, 1e-4
# Weights that grow from zero like t^k have relative updates of k/t; in healthy trainings k was at most 4.
GROWTH = 8.0
# The share of elements of a low-precision weight that an update left unchanged.
ROUNDED = 0.9
# A rate below this share of the largest so far is the end of a schedule.
DECAYED = 0.1
# The number of steps after which the last losses are compared with the first.
LONG = 30
# The share of units that went off since the first measurement.
GROWN = 0.5
# A unit is off if it is 0 in the whole batch of this many measured steps in a row.
BATCHES = 3


@dataclass
class WatchedTraining:
    """The last steps of a training, and the findings so far; each kind is reported once per place.

    Attributes:
        warn: is called with each new finding.
        step: the number of steps so far.
        updates: ‖Δw‖/‖w‖ of the last measured step.
    """

    warn: Callable[[Finding], None]
    step: int = 0
    findings: list[Finding] = field(default_factory=list)
    updates: Numbers = field(default_factory=dict)
    _said: set[tuple[str, str]] = field(default_factory=set)
    _runs: dict[str, dict[str, int]] = field(default_factory=dict)
    _values: dict[str, deque[float]] = field(default_factory=dict)
    _first: float = 0.0
    _start: float = 0.0
    _jump: tuple[float, str, str] | None = None
    _gradients: deque[Numbers] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _outputs: deque[Numbers] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _sizes: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    _spike: tuple[int, float] | None = None
    _first_off: dict[str, float] = field(default_factory=dict)
    _nonzero: frozenset[str] | None = None
    _highest: float = 0.0

    def judge_step(self, loss: float | None, gradients: Numbers, replayed: Replayed, find_origin: FindOrigin) -> None:
        """Judge the loss (if known) and the gradient norms of a step before its update."""
        total = sqrt(sum(norm**2 for norm in gradients.values()))
        if self.steps_of("not_finite"):
            return
        if not (isfinite(total) and isfinite(loss or 0.0)):
            what = "gradient" if isfinite(loss or 0.0) else "loss"
            origin = find_origin(what)
            words = {"first": origin.words, "look": origin.look}
            self._add("not_finite_step", origin.where, {"what": what, **origin.evidence}, **words)
            return
        if loss is not None or "loss" not in self._values:
            self._judge_jump(loss, total, gradients, replayed)
        self._gradients.append(gradients)

    def _judge_jump(self, loss: float | None, total: float, gradients: Numbers, replayed: Replayed) -> None:
        """Report two steps in a row beyond the bound (one may be an odd batch); gradient norms are logarithmic."""
        name, value = ("gradient", log(max(total, 1e-38))) if loss is None else ("loss", loss)
        past = self._values.setdefault(name, deque(maxlen=WINDOW))
        if len(past) == 3 and not self._first:
            self._first = median(past)
        if len(past) == FEW and not self._start:
            self._start = abs(median(past))
        if len(past) < FEW or value <= _bound(past, log(GRADIENT) if loss is None else RISE * self._start):
            past.append(value)
            self._jump = None
        elif self._jump is None:
            self._jump = (total if loss is None else loss, *self._first_to_jump(replayed(), gradients))
        else:
            (value, place, words), middle = self._jump, median(past)
            evidence = {"step": self.step - 1, "median": middle if loss is not None else exp(middle), "value": value}
            what = "loss" if loss is not None else "gradient's norm (no loss was passed to the watch)"
            self.report("jump", evidence, [place], what=what, first=words)
            # The new level is compared with what follows.
            past.clear()
            self._jump = None

    def judge_end(self, step: int, loss: float) -> None:
        """Report that the training stops at a diverged loss, unless a recent finding explains it."""
        if any(said > step - FEW for said in self.steps_of("not_finite", "jump")):
            return
        gradients = self._gradients[-1] if self._gradients else {}
        largest = max(gradients, key=gradients.__getitem__, default="")
        words = "no gradient was seen"
        if largest:
            words = f"the largest gradient, of norm {gradients[largest]:.3g}, is that of {largest}"
        _, place, words = self._jump or (loss, largest, words)
        self.report("diverged", {"step": step, "loss": loss}, [place], first=words)

    def _first_to_jump(self, outputs: Outputs | None, gradients: Numbers) -> tuple[str, str]:
        """Return the first layer in execution order with a jump of its output, or else the largest gradient jump."""
        sizes = as_floats(outputs.sizes) if outputs else {}
        for place, ratio in _jumped(sizes, self._outputs, OUTPUT).items():
            return place, f"the output of {place or 'the network'} jumps first, to {ratio:.3g} times its median"
        ratios = _jumped(gradients, self._gradients, GRADIENT)
        if not ratios:
            return "", "no single layer's output or gradient jumps; look at the batch"
        place = max(ratios, key=ratios.__getitem__)
        return place, f"the gradient of {place} jumps most, to {ratios[place]:.3g} times its median"

    def judge_size(self, size: float) -> None:
        """Report a jump of the loss shortly after a step of a size, relative to the rate, far above those before."""
        value = log(size) if isfinite(size) and size > 0 else None
        if value is not None and (len(self._sizes) < FEW or value <= _bound(self._sizes, log(SPIKE))):
            self._sizes.append(value)
        elif value is not None and (self._spike is None or self.step - self._spike[0] > LATER):
            self._spike = self.step, exp(value - median(self._sizes))
        jumps = self.steps_of("jump", "diverged")
        if jumps and self._spike is not None and 0 <= jumps[-1] - self._spike[0] <= LATER:
            at, ratio = self._spike
            self.report("update_spike", {"step": jumps[-1], "at": at, "ratio": ratio})

    def judge_measurement(self, new: Mapping[str, Numbers], rate: float) -> None:
        """Judge a step at a rate after its update by the quantities of `Watch.table`."""
        self._outputs.append(new["output"])
        for place, share in new["off"].items():
            first = self._first_off.setdefault(place, share)
            if len(self._outputs) >= BATCHES and share >= max(min(DEAD, first + GROWN), first + 1 - DEAD):
                self.report("dying_units", {"share": share, "first_share": first}, [place])
        closed = [name for name, value in new["multiplier"].items() if value == 0]
        self.in_a_row("closed_multipliers", closed, {"multipliers": len(new["multiplier"])})
        lost = [name for name, share in new["lost"].items() if share > ROUNDED]
        share = min((new["lost"][name] for name in lost), default=0.0)
        self.in_a_row("rounded_updates", lost, {"share": share, "rate": rate})
        self._judge_updates({name: update for name, update in new["update"].items() if name not in lost}, rate)

    def _judge_updates(self, new: Numbers, rate: float) -> None:
        """Report layers with updates that are too large or too small."""
        before, self.updates = self.updates, new
        if self._nonzero is None:
            # Weights of zeros have no relative update.
            self._nonzero = frozenset(new)
        self._highest = max(self._highest, rate)
        middle = median(new.values()) if new else 0.0
        least = max(SHARE * middle, SMALL if rate >= DECAYED * self._highest else 0.0)
        beyond = (name for name in new if name in self._nonzero or new[name] > GROWTH / max(self.step, 1))
        # Growing updates belong to branches that open after their initialization to zero.
        steady = (name for name in new if new[name] <= 2 * before.get(name, inf))
        large = sorted((name for name in beyond if new[name] > LARGE), key=lambda name: -new[name])
        small = sorted((name for name in steady if new[name] < least), key=new.__getitem__)
        for kind, where in (("large_updates", large), ("small_updates", small)):
            update = new[where[0]] if where else 0.0
            self.in_a_row(kind, where, {"update": update, "median": middle, "rate": rate})

    @property
    def is_failing(self) -> bool:
        """Whether a jump or too large updates were found, or the loss stays above its first values."""
        last = [*self._values.get("loss", ())]
        has_risen = len(last) >= LONG and median(last[-FEW:]) > (1 + RISE) * self._first > 0
        return has_risen or bool(self.steps_of("jump", "large_updates"))

    def steps_of(self, *kinds: str) -> list[int]:
        """Return the steps of the findings of some kinds."""
        return [int(known.evidence["step"]) for known in self.findings if known.kind in kinds]

    def report(self, kind: str, evidence: FindingEvidence, where: Sequence[str] = ("",), **words: Any) -> None:
        """Add a finding unless this kind was reported before for all of the places; nowhere is nothing to report."""
        places = {(kind, place) for place in where}
        if places <= self._said:
            return
        self._said |= places
        more = f" and {len(where) - 1} more" if len(where) > 1 else ""
        self._add(kind, where, {**evidence, "places": len(where)}, more=more, **words)

    def in_a_row(
        self,
        kind: str,
        where: bool | Sequence[str],
        evidence: FindingEvidence | None = None,
        among: Sequence[str] | None = None,
        **words: Any,
    ) -> int:
        """Report the places where a fault has held as often in a row as `IN_A_ROW` says; True is the whole network.

        Only places `among` those given are judged, if they are: those of one of several optimizers.

        Returns how often it has held at the place where it has held most often.
        """
        places = ([""] if where else []) if isinstance(where, bool) else where
        before = self._runs.get(kind, {})
        if not (places or before):
            return 0
        runs = {place: before.get(place, 0) + 1 for place in places}
        others = {} if among is None else {place: n for place, n in before.items() if place not in among}
        self._runs[kind] = others | runs
        most = max(runs.values(), default=0)
        if held := [place for place, times in runs.items() if times >= IN_A_ROW[kind]]:
            self.report(kind, {**(evidence or {}), "steps": most}, held, **words)
        return most

    def _add(self, kind: str, where: Sequence[str], evidence: FindingEvidence, **words: Any) -> None:
        self.findings.append(finding(kind, where, {"step": self.step, **evidence}, **words))
        self.warn(self.findings[-1])


def _bound(past: Sequence[float], margin: float) -> float:
    """Return the bound of a jump: the median plus twice the largest upward deviation, or plus the margin if larger.

    The largest of 100 normal numbers is 2.5 standard deviations above the median, so the bound is five of them.
    """
    middle = median(past)
    return middle + max(2 * (max(past) - middle), margin)


def _jumped(values: Mapping[str, float], past: Iterable[Mapping[str, float]], factor: float) -> dict[str, float]:
    """Return the ratios to the median of their past for the numbers that jump on a logarithmic scale.

    Numbers with fewer than two past values are not judged. A number that is not finite is a jump.
    """
    rows, found = [*past], {}
    for name, value in values.items():
        before = [row[name] for row in rows if row.get(name, 0.0) > 0]
        if not isfinite(value):
            found[name] = value
        elif len(before) > 1 and value > 0 and log(value) > _bound([*map(log, before)], log(factor)):
            found[name] = value / median(before)
    return found
