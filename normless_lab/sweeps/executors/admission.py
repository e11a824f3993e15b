"""The number of runs that a GPU executes side by side: as many as its memory holds and as increase the speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

# Steps of each run before its speed counts, for loading, conversion and capture.
SETTLED = 10
# Seconds over which the speed at a number of runs is measured.
WINDOW = 2.0
# Doubling the runs is worthwhile if it multiplies the steps per second by this factor.
GAIN = 1.1
# Share of the free memory that further runs may take.
SHARE = 0.9


class Admission:
    """Decide whether a GPU takes a further run beside the running ones.

    With a `limit`, it takes this number of runs. Without it, the limit is found while they run: it begins at 1 and is
    doubled as long as this multiplies the steps per second by at least `GAIN`, and as long as the free memory
    suffices for the further runs, judged by the memory of the runs so far.

    Args:
        limit: the number of runs; None to find it.
        memory: the bytes that all runs have taken and the free bytes; (0, 1) if they are not known.
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
        """Record that a run began."""
        self._turns[run] = 0

    def end(self, run: Hashable) -> None:
        """Record that a run ended."""
        self._turns.pop(run, None)

    def lack_memory(self) -> None:
        """Record that a run did not find memory beside the others, and decrease the limit by 1."""
        self.limit, self._is_fixed = max(1, len(self._turns) - 1), True

    def count(self, run: Hashable) -> None:
        """Record a step of a run; the limit may rise."""
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
        """Double the limit if the last doubling increased the speed and the memory allows it."""
        pays, self._speed = speed >= GAIN * self._speed, speed
        taken, free = self._memory()
        fits = int(SHARE * free * len(self._turns) / taken) if taken else len(self._turns)
        further = min(self.limit, fits)
        if pays and further:
            self.limit += further
        else:
            self._is_fixed = True
        self._since = None
