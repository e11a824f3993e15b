"""What became of a case: carried out in a process that is forked for a batch of them, with limits."""

from __future__ import annotations

import gc
import io
import linecache
import os
import pickle
import resource
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from fuzz_calls import carry_out
from fuzz_cases import Case
from fuzz_hostile import MARK
from fuzz_threads import CARRIED_OUT
from fuzz_world import copy_world, damage

import normless
import normless_papers
from normless.cli import main

# Seconds of processor time for a case; after so many of wall time its process is ended.
CPU_SECONDS, WALL_SECONDS = 20, 240
# Bytes that a process may allocate on top of what it has when it starts.
MEMORY = 3 << 30
BATCH = 100
OWN = tuple(str(Path(one.__file__ or "").parent) for one in (normless, normless_papers))


class TimeLimit(BaseException):
    """The processor time of a case is used up."""


class Enough(BaseException):
    """A training or a sweep began: what it was given was accepted."""


@dataclass(frozen=True)
class Outcome:
    """What became of a case.

    Attributes:
        verdict: `survived`, `refused` (by a sentence of ours), `user's own` (their traceback), `net` (by the last net
            in `main`), `traceback`, `hang`, `crash`, `left over` (refused, and something is left in the folder), or
            `executed` (code that data named was).
        words: the sentence, or the end of the traceback.
        place: file and line where an error was raised.
    """

    case: Case
    verdict: str
    words: str = ""
    place: str = ""
    seconds: float = 0.0


BAD = ("net", "traceback", "hang", "crash", "left over", "executed")


def carried_out(cases: Sequence[Case], world: Path, scratch: Path) -> Iterator[Outcome]:
    """The outcomes of cases, each in a copy of the folder `world`; a process for each batch of them."""
    queue = list(cases)
    while queue:
        outcomes = _forked(queue[:BATCH], world, scratch)
        yield from outcomes
        queue = queue[len(outcomes) :]


def _forked(batch: Sequence[Case], world: Path, scratch: Path) -> list[Outcome]:
    """The outcomes of a batch up to the first case that its process did not survive."""

    # What the parent imported is never garbage, and a copy of it in every process would take long.
    gc.freeze()

    def work(pipe: Any) -> None:
        _limit()
        for case in batch:
            pickle.dump(_outcome(case, world, scratch), pipe)
            pipe.flush()

    written, code = in_fork(work)
    outcomes: list[Outcome] = []
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            outcomes.append(pickle.load(written))
    if len(outcomes) < len(batch):
        verdict = "hang" if code == -signal.SIGALRM else "crash"
        outcomes.append(Outcome(batch[len(outcomes)], verdict, f"the process ended with {code}"))
    return outcomes


def in_fork(work: Callable[[Any], None]) -> tuple[io.BytesIO, int]:
    """What a function writes to the file that it is given in a process of its own, and that process' exit code."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(reader)
        code = 1
        try:
            with os.fdopen(writer, "wb") as pipe:
                work(pipe)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        written = io.BytesIO(pipe.read())
    return written, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _limit() -> None:
    """Limit the memory of this process, and keep it from the network."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    torch.set_num_threads(1)

    def refuse(*_: Any) -> None:
        raise OSError(101, "Network is unreachable")

    def stop(*_: Any) -> None:
        raise TimeLimit

    socket.socket.connect = refuse  # type: ignore[method-assign, assignment]
    socket.getaddrinfo = refuse  # type: ignore[assignment]
    signal.signal(signal.SIGPROF, stop)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextmanager
def _begun() -> Iterator[None]:
    """End what would take long once it has begun: the second epoch of a training, the runs of a sweep."""
    from normless_lab.sweeps import Laboratory
    from normless_lab.train import training_run

    original = training_run.train_epoch

    def train_epoch(training: Any, epoch: int, *rest: Any, **options: Any) -> Any:
        if epoch > 0:
            raise Enough
        return original(training, epoch, *rest, **options)

    def begin(*_: Any, **__: Any) -> None:
        raise Enough

    places = ["normless_lab.bench.command._measured", "normless_papers.results.reproduce.reproduce"]
    with (
        patch.object(training_run, "train_epoch", train_epoch),
        patch.object(Laboratory, "run", begin),
        patch.object(Laboratory, "submit", begin),
        patch(places[0], begin),
        patch(places[1], begin),
    ):
        yield


def _outcome(case: Case, world: Path, scratch: Path) -> Outcome:
    """Carry out one case in this process."""
    shutil.rmtree(scratch, ignore_errors=True)
    copy_world(world, scratch)
    os.chdir(scratch)
    for name, *how in case.damages:
        damage(scratch / name, *how)
    before = _listing(scratch)
    started = time.perf_counter()
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.alarm(WALL_SECONDS)
    try:
        verdict, words, place = _call(case) if case.call else _command(case)
    except TimeLimit:
        verdict, words, place = "hang", f"more than {CPU_SECONDS} s", ""
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    left = sorted(_listing(scratch) - before)
    # A run that began, in whose data a damaged file was met later, is there to be resumed.
    if verdict == "refused" and left and not any(name.endswith("config.yaml") for name in left):
        verdict, words = "left over", f"{', '.join(left[:4])}: {words}"
    if any((folder / MARK).exists() for folder in (scratch, *scratch.parents)):
        verdict, words = "executed", f"{MARK} is there: {words}"
    os.chdir(world)
    return Outcome(case, verdict, words, place, time.perf_counter() - started)


def _listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts}


class _Errors(io.StringIO):
    """Standard error, with the exception that is being handled when the command says what is wrong."""

    handled: BaseException | None = None

    def write(self, text: str) -> int:
        if text.startswith("normless: "):
            self.handled = sys.exc_info()[1]
        return super().write(text)


def _command(case: Case) -> tuple[str, str, str]:
    """Verdict, words and place of a command line."""
    errors = _Errors()
    try:
        with redirect_stderr(errors), redirect_stdout(io.StringIO()), _begun(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = main(list(case.words))
    except (Enough, TimeLimit) as end:
        if isinstance(end, TimeLimit):
            raise
        return "survived", "", ""
    except BaseException as error:
        return "traceback", _last(error), _place(error)
    said = errors.getvalue()
    place = "" if errors.handled is None else _place(errors.handled)
    last = said.strip().rpartition("\n")[2]
    if "Traceback" in said:
        own = "mine.py" in said and not any(f'File "{home}' in said for home in OWN)
        return ("user's own" if own and code == 1 else "traceback"), last, place
    if "--debug" in last:
        return "net", last, place
    if code not in (0, 1, 2):
        return "traceback", f"exit code {code}: {last}", place
    if code == 2 and case.words and said.count("\n") > 1 and "normless: " not in last:
        return "traceback", f"more than a sentence: {said[-300:]}", place
    return ("refused" if code == 2 else "survived"), last, place


def _call(case: Case) -> tuple[str, str, str]:
    """Verdict, words and place of a call: an error must be raised on purpose, by a statement of ours."""
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()), _begun(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            CARRIED_OUT[case.kind](*case.call[1:]) if case.kind in CARRIED_OUT else carry_out(case.call)
    except Enough:
        pass
    except TimeLimit:
        raise
    except (ValueError, TypeError, normless.errors.NormlessError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        ours = frame.filename.startswith(OWN) and linecache.getline(frame.filename, frame.lineno or 0).strip()
        verdict = "refused" if ours and ours.startswith("raise ") else "traceback"
        return verdict, _last(error), _place(error)
    except BaseException as error:
        return "traceback", _last(error), _place(error)
    return "survived", "", ""


def _last(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def _place(error: BaseException) -> str:
    """The innermost line of ours that an error passed through, and the file where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(OWN)]
    inner = f"{Path(ours[-1].filename).relative_to(Path(OWN[0]).parent)}:{ours[-1].lineno}" if ours else ""
    raised = "" if not frames or frames[-1] in ours else f" in {frames[-1].filename.rpartition('site-packages/')[2]}"
    return inner + raised
