"""The processor cores and threads of this process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_LOWEST = 19
# Linux divides the processor's time among sessions first, and by niceness only within one.
_OF_SESSION = Path("/proc/self/autogroup")


def available_cores() -> int:
    """The number of processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def yield_to_others() -> None:
    """Give this process the lowest priority, in a session of its own where the system has sessions."""
    with suppress(AttributeError, OSError):
        os.setsid()
        _OF_SESSION.write_text(f"{_LOWEST}", encoding="ascii")
    os.nice(_LOWEST - os.nice(0))


def threads_of_each(processes: int) -> int:
    """The threads of each of some processes that share the cores: one where there is a process per core or more."""
    return max(1, available_cores() // processes)
