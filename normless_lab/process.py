"""The process that a command runs in: its processor cores and memory, and files that others wrote or will open."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import torch

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


MOST_CELLS = 30_000_000
MOST_BYTES = 2**29


def read_table(path: Path) -> pd.DataFrame:
    """Return a Parquet table; a ValueError for one of more than 30 million values or half a gigabyte."""
    # Most of what this package is for needs neither.
    import pandas as pd
    import pyarrow.parquet

    about = pyarrow.parquet.read_metadata(path)
    cells = about.num_rows * about.num_columns
    size = sum(about.row_group(group).total_byte_size for group in range(about.num_row_groups))
    if cells > MOST_CELLS or size > MOST_BYTES:
        raise ValueError(
            f"expected a table of at most {MOST_CELLS:,} values and {MOST_BYTES:,} bytes, got {cells:,} values of "
            f"{size:,} bytes"
        )
    table: pd.DataFrame = pd.read_parquet(path)
    return table


def read_yaml(path: Path | str) -> Any:
    """The value in a YAML file.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not YAML, or not plain, see `check_plain`.
    """
    import yaml

    from normless.plain_yaml import check_plain

    try:
        text = Path(path).read_text(encoding="utf-8")
        check_plain(text)
        return yaml.safe_load(text)
    # A date without such a day is a ValueError, and a key that is a list a TypeError.
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML that can be read: {error}") from error
