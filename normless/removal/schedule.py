"""When a removal freezes which norm, what each freezing costs, and when it is taken back; plain data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite, nan, sqrt
from statistics import fmean, pstdev
from typing import Any, Literal

Outcome = Literal["watched", "frozen", "taken back"]

# The loss after a freezing is compared with this many deviations of the loss before it.
_DEVIATIONS = 3.0
# The smallest number of losses before a freezing that count.
_WINDOW = 10


@dataclass(frozen=True)
class Freezing:
    """A change of a norm and what it cost.

    Attributes:
        path: the norm's qualified name.
        what: `norm`, or `first token` for a step of the first token's constant to that of the others.
        step: the step after which the norm was changed.
        before: the mean loss of the last steps before.
        after: the mean loss of the last steps that were watched; NaN before the first.
        outcome: `watched`, then `frozen` or `taken back`.
    """

    path: str
    what: Literal["norm", "first token"]
    step: int
    before: float
    after: float = nan
    outcome: Outcome = "watched"

    @property
    def cost(self) -> float:
        """The loss after the change minus the loss before."""
        return self.after - self.before

    def __str__(self) -> str:
        losses = f"loss {self.before:.4f} → {self.after:.4f} ({self.cost:+.4f})"
        return f"step {self.step}: {self.path}, {self.what}: {losses}, {self.outcome}"


@dataclass
class Schedule:
    """Which norm is next, which is watched, and what the last losses were.

    Attributes:
        interval: steps from one freezing to the next, in which the loss is watched.
        start: steps before the first freezing.
        tolerance: the increase of the mean loss, besides its deviation from batch to batch, at which a freezing is
            taken back.
        attempts: how often a norm is frozen before it is set aside.
        queue: the paths of the norms to freeze, in order.
        step: the number of steps so far.
        waits: the step before which nothing is frozen.
        losses: of the last steps before a freezing, later of the steps since.
        history: all freezings, in order.
        set_aside: the paths of norms that were taken back too often.
    """

    interval: int
    start: int
    tolerance: float
    attempts: int
    queue: list[str]
    step: int = 0
    waits: int = 0
    losses: list[float] = field(default_factory=list)
    history: list[Freezing] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waits = self.start
        self._before = 0

    @property
    def watched(self) -> Freezing | None:
        """The freezing whose loss is watched, or None."""
        return self.history[-1] if self.history and self.history[-1].outcome == "watched" else None

    def advance(self, loss: float) -> Freezing | None:
        """Note the loss of a step; return the freezing that ends with this step, with its outcome, or None."""
        self.step += 1
        self.losses.append(loss)
        watched = self.watched
        if watched is None:
            self.losses = self.losses[-self._window :]
            return None
        after = self.losses[self._before :]
        watched = replace(watched, after=fmean(after))
        if self._jumps(after):
            self.history[-1] = replace(watched, outcome="taken back")
            self.losses = self.losses[: self._before]
            self._try_later(watched.path)
        elif len(after) >= self.interval:
            self.history[-1] = replace(watched, outcome="frozen")
            self.losses = after[-self._window :]
            self.waits = self.step
        else:
            self.history[-1] = watched
            return None
        return self.history[-1]

    @property
    def is_due(self) -> bool:
        """Whether the next norm may be frozen now."""
        return bool(self.queue) and self.watched is None and self.step >= self.waits

    def begin(self, path: str, what: Literal["norm", "first token"]) -> None:
        """Note that a norm is frozen now."""
        self._before = len(self.losses)
        self.history.append(Freezing(path, what, self.step, fmean(self.losses)))

    def state(self) -> dict[str, Any]:
        """Return all values as plain data."""
        values = asdict(self)
        return values | {"before": self._before}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the progress, but not the settings, of an earlier schedule."""
        self.step, self.waits, self._before = state["step"], state["waits"], state["before"]
        self.queue, self.losses, self.set_aside = (list(state[key]) for key in ("queue", "losses", "set_aside"))
        self.history = [Freezing(**values) for values in state["history"]]

    @property
    def _window(self) -> int:
        """The number of losses before a freezing that count."""
        return max(self.interval, _WINDOW)

    def _jumps(self, after: list[float]) -> bool:
        """Whether the losses after a freezing exceed those before it by more than they deviate."""
        before = self.losses[: self._before]
        deviation = pstdev(before) * sqrt(1 / len(after) + 1 / len(before))
        return not isfinite(fmean(after)) or fmean(after) > fmean(before) + self.tolerance + _DEVIATIONS * deviation

    def _try_later(self, path: str) -> None:
        """Let the norm that was taken back be tried again after a time that doubles, or set it aside."""
        tries = sum(freezing.path == path and freezing.outcome == "taken back" for freezing in self.history)
        if tries >= self.attempts:
            self.set_aside.append(path)
        else:
            self.queue.insert(0, path)
        self.waits = self.step + self.interval * 2**tries
