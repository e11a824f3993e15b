"""Kill a process before one of its changes of files."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def killed_before(number: int, folder: Path, work: Callable[[], object]) -> bool:
    """Do work in a fork, killed before its change of this number in a folder; return whether it got that far."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; the fork uses none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        count = 0

        def hook(event: str, args: tuple[Any, ...]) -> None:
            nonlocal count
            writes = event != "open" or (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR))
            if event.startswith(("open", "os.")) and writes and args and str(args[0]).startswith(str(folder)):
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(hook)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    end = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert end in (0, -signal.SIGKILL)
    return end != 0
