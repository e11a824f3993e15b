"""Processes that are forked to do something, and faults at the changes of files that they make."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normless.errors import NormlessError

WRITES = ("open", "os.mkdir", "os.rename", "os.fsync")
# Ends of a forked process.
DONE, TOLD, RAISED = 0, 3, 4

Operation = Callable[[int, str], None]


def in_child(work: Callable[[], object], *, kill_after: float | None = None) -> int:
    """Do work in a fork of this process; returns its end, negative if a signal killed it."""
    child = os.fork()
    if child == 0:
        code = RAISED
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                work()
            code = DONE
        except (NormlessError, OSError) as error:
            # The command prints these as a sentence.
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
    count, sync = 0, os.fsync
    busy = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count, busy
        if busy or not event.startswith(("open", "os.", "shutil.")):
            return
        if event == "open" and not (isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            return
        if event != "os.fsync" and not (args and str(args[0]).startswith(str(folder))):
            return
        if event in ("os.listdir", "os.scandir", "os.walk"):
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

    def do(count: int, _: str) -> None:
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    return do


def refuse_from(number: int, code: int, last: int | None = None) -> Operation:
    """Refuse the operations from this number on that need space, or, read-only, all, with an error's code."""

    def do(count: int, event: str) -> None:
        if number <= count <= (last or count) and (code == errno.EROFS or event in WRITES):
            raise OSError(code, os.strerror(code))

    return do
