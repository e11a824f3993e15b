"""The memory that this process uses and may still use."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def free_memory(device: torch.device) -> float:
    """Bytes that are free on a device; of the CPU, what Linux calls available, elsewhere half of the memory."""
    if device.type == "cuda":
        from torch.cuda import mem_get_info

        return float(mem_get_info(device)[0])
    available = _stated("/proc/meminfo", "MemAvailable")
    if available is not None:
        return available
    return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0.0


def resident_memory() -> float:
    """Bytes of this process that are resident; the most so far where /proc is missing."""
    resident = _stated("/proc/self/status", "VmRSS")
    return peak_memory() if resident is None else resident


def peak_memory() -> float:
    """The most bytes of this process that were resident so far."""
    peak = _stated("/proc/self/status", "VmHWM")
    if peak is not None:
        return peak
    import resource

    # On Linux this number begins, in a new process, at the memory of the one that started it.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def _stated(table: str, wanted: str) -> float | None:
    """Return the bytes in a line `NAME: N kB` of a Linux file; None if the line is missing."""
    path = Path(table)
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        name, _, size = line.partition(":")
        if name == wanted:
            return 1024.0 * int(size.split()[0])
    return None
