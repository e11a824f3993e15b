"""Processes that are forked to do something, and faults at the changes of files that they make."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normless.errors import NormlessError

# Ends of a forked process: it is done, it raised what a command prints as a sentence, or anything else.
DONE, TOLD, RAISED = 0, 3, 4
READS = ("os.listdir", "os.scandir", "os.walk")

Operation = Callable[[int, str], None]


def in_child(work: Callable[[], object], *, kill_after: float | None = None) -> int:
    """Do work in a fork of this process; return its end, negative if a signal killed it."""
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; the fork uses none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = RAISED
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                work()
            code = DONE
        except (NormlessError, OSError) as error:
            code = TOLD if str(error) else RAISED
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def watch_operations(folder: Path, do: Operation) -> None:
    """Call `do(number, event)` before every change of files in a folder, in this process and for ever."""
    count, sync, busy = 0, os.fsync, False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count, busy
        if busy or event in READS or not event.startswith(("open", "os.", "shutil.")):
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            return
        if event != "os.fsync" and not (args and str(args[0]).startswith(str(folder))):
            return
        count += 1
        busy = True
        try:
            do(count, event)
        finally:
            busy = False

    def fsync(handle: Any) -> None:
        hook("os.fsync", ())
        sync(handle)

    # Of it Python's audit tells nothing.
    os.fsync = fsync  # type: ignore[assignment]
    sys.addaudithook(hook)


def kill_at(number: int) -> Operation:
    """SIGKILL before the operation of this number."""
    return lambda count, _: os.kill(os.getpid(), signal.SIGKILL) if count == number else None


def killed_before(number: int, folder: Path, work: Callable[[], object]) -> bool:
    """Do work in a fork, killed before its change of this number in a folder; return whether it got that far."""

    def watched() -> None:
        watch_operations(folder, kill_at(number))
        work()

    end = in_child(watched)
    assert end in (DONE, -signal.SIGKILL)
    return end != DONE
