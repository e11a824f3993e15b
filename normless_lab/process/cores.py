"""The processor cores and threads of this process."""

from __future__ import annotations

import os


def available_cores() -> int:
    """The number of processor cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # absent on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def threads_of_each(processes: int) -> int:
    """The threads of each of some processes that share the cores: one where there is a process per core or more."""
    return max(1, available_cores() // processes)
