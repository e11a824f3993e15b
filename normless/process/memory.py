"""The memory that this process may still use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def free_memory(device: torch.device) -> float:
    """Bytes that are free on a device; of the CPU, what Linux calls available, elsewhere half of the memory."""
    if device.type == "cuda":
        from torch.cuda import mem_get_info

        return float(mem_get_info(device)[0])
    table = Path("/proc/meminfo")
    lines = table.read_text("utf-8").splitlines() if table.is_file() else []
    for line in lines:
        name, _, size = line.partition(":")
        if name == "MemAvailable":
            return 1024.0 * int(size.split()[0])
    return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0.0
