"""How many runs a card carries out side by side: as many as its memory holds and as pay."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

# Steps of each run before its speed counts: it is loaded, converted and captured by then.
SETTLED = 10
# Seconds over which the speed of so many runs is measured.
WINDOW = 2.0
# Twice the runs are worth it if they make this much more of the steps per second.
GAIN = 1.1
# Of the memory that is free, what further runs may take.
SHARE = 0.9


class Admission:
    """Says whether a card takes a further run beside those that it carries out.

    With a `limit` it takes so many. Without one the limit is found while they run: it begins at 1 and is doubled as
    long as that makes at least `GAIN` of the steps per second, and as the memory that a run has taken so far is free
    as often as there are further runs.

    Args:
        limit: the number of runs, None to find it.
        memory: the bytes that all runs have taken and those that are free; (0, 1) where they are not known.
        clock: the time in seconds.

    Attributes:
        limit: the number of runs now.
    """

    def __init__(
        self,
        limit: int | None,
        memory: Callable[[], tuple[float, float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = 1 if limit is None else limit
        self._is_fixed = limit is not None
        self._memory = memory
        self._clock = clock
        self._turns: dict[Hashable, int] = {}
        self._since: float | None = None
        self._counted = 0
        self._speed = 0.0

    def begin(self, run: Hashable) -> None:
        """A run was begun."""
        self._turns[run] = 0

    def end(self, run: Hashable) -> None:
        """A run has ended."""
        self._turns.pop(run, None)

    def lack_memory(self) -> None:
        """A run found no memory beside the others: one less is the limit from now on."""
        self.limit, self._is_fixed = max(1, len(self._turns) - 1), True

    def count(self, run: Hashable) -> None:
        """A run has made a step; the limit may rise."""
        self._turns[run] += 1
        if self._is_fixed or len(self._turns) < self.limit:
            return
        if self._since is None:
            if min(self._turns.values()) >= SETTLED:
                self._since, self._counted = self._clock(), 0
            return
        self._counted += 1
        seconds = self._clock() - self._since
        if seconds >= WINDOW:
            self._judge(self._counted / seconds)

    def _judge(self, speed: float) -> None:
        """Double the limit if the last doubling paid and the memory allows it, else keep it."""
        pays, self._speed = speed >= GAIN * self._speed, speed
        taken, free = self._memory()
        fits = int(SHARE * free * len(self._turns) / taken) if taken else len(self._turns)
        further = min(self.limit, fits)
        if pays and further:
            self.limit += further
        else:
            self._is_fixed = True
        self._since = None
