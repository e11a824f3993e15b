"""When a removal freezes which norm, what each freezing costs, and when it is taken back; plain data only."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite, isnan, nan, sqrt
from statistics import fmean, pstdev
from typing import Literal

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
    outcome: Literal["watched", "frozen", "taken back"] = "watched"

    @property
    def cost(self) -> float:
        """The loss after the change minus the loss before."""
        return self.after - self.before

    def __str__(self) -> str:
        losses = f"loss {self.before:.4f} → "
        losses += "not measured yet" if isnan(self.after) else f"{self.after:.4f} ({self.cost:+.4f})"
        return f"step {self.step}: {self.path}, {self.what}: {losses}, {self.outcome}"


@dataclass
class RemovalSchedule:
    """Which norm is next, which is watched, and what the last losses were; plain data.

    Attributes:
        start, interval, tolerance, attempts: as of `remove_norms`.
        queue: the paths of the norms to freeze, in order.
        set_aside: the paths of norms that were taken back too often.
        step: the number of steps so far.
        waits: the step before which nothing is frozen.
        losses: of the last steps before a freezing, later of the steps since.
        known: how many of these came before it.
        history: all freezings, in order.
    """

    start: int
    interval: int
    tolerance: float
    attempts: int
    queue: list[str]
    set_aside: list[str] = field(default_factory=list)
    step: int = 0
    waits: int = 0
    losses: list[float] = field(default_factory=list)
    known: int = 0
    history: list[Freezing] = field(default_factory=list)

    @property
    def watched(self) -> Freezing | None:
        """The freezing whose loss is watched, or None."""
        return self.history[-1] if self.history and self.history[-1].outcome == "watched" else None

    @property
    def is_due(self) -> bool:
        """Whether the next norm may be frozen now."""
        return bool(self.queue) and self.watched is None and self.step >= max(self.start, self.waits)

    @property
    def steps_left(self) -> int:
        """The number of steps until every norm of the queue is frozen, if none is taken back."""
        if self.watched is not None:
            wait = self.interval - (len(self.losses) - self.known)
        else:
            wait = max(0, self.start - self.step, self.waits - self.step) if self.queue else 0
        return wait + self.interval * len(self.queue)

    def begin(self, path: str, what: Literal["norm", "first token"]) -> None:
        """Note that a norm is frozen now."""
        self.known = len(self.losses)
        self.history.append(Freezing(path, what, self.step, fmean(self.losses)))

    def advance(self, loss: float) -> Freezing | None:
        """Note the loss of a step; return the freezing that ends with this step, with its outcome, or None."""
        self.step += 1
        self.losses.append(loss)
        window = max(self.interval, _WINDOW)
        watched = self.watched
        if watched is None:
            self.losses = self.losses[-window:]
            return None
        before, after = self.losses[: self.known], self.losses[self.known :]
        rise = self.tolerance + _DEVIATIONS * pstdev(before) * sqrt(1 / len(after) + 1 / len(before))
        self.history[-1] = watched = replace(watched, after=fmean(after))
        if not isfinite(watched.after) or watched.after > fmean(before) + rise:
            self.history[-1] = replace(watched, outcome="taken back")
            self.losses = before
            self._try_later(watched.path)
        elif len(after) >= self.interval:
            self.history[-1] = replace(watched, outcome="frozen")
            self.losses, self.waits = after[-window:], self.step
        else:
            return None
        return self.history[-1]

    def _try_later(self, path: str) -> None:
        """Let the norm that was taken back be tried again after a time that doubles, or set it aside."""
        tries = sum(freezing.path == path and freezing.outcome == "taken back" for freezing in self.history)
        if tries >= self.attempts:
            self.set_aside.append(path)
        else:
            self.queue.insert(0, path)
        self.waits = self.step + self.interval * 2**tries
