"""Kill networks, runs, sweeps and reports at every file operation, fill the disk or damage files; check what is left.

``make faults`` tries all; with ``--sample N`` it is every N-th, with ``--works`` those of some of the four. It
prints a table and exits with 1 if a fault lost, doubled or silently changed anything, or ended in a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lab_helpers import Here, tiny_sweep
from run_helpers import Interrupt, without_seconds

import normless as nl
from normless.errors import NormlessError
from normless.models.spec import build_model
from normless_lab.sweeps import Laboratory
from normless_lab.train import TrainConfig, train, trained_network
from normless_papers.pages.site import write_pages_of
from normless_papers.results.reproduce import reproduce

WRITES = ("open", "os.mkdir", "os.rename", "os.fsync")
CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)",
    data="digits(train=128, test=64)",
    batch_size=64,
    epochs=2,
    device="cpu",
)
COLUMNS = ("tried", "survived", "lost", "doubled", "undetected", "tracebacks")
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


class Work:
    """Something that is carried out in a folder and gives the same facts, however often it was interrupted."""

    def __init__(self, name: str, carry_out: Callable[[Path], None], facts: Callable[[Path], Any]) -> None:
        self.name, self.carry_out, self.facts = name, carry_out, facts
        self.place = Path(tempfile.mkdtemp(prefix="normless-faults-"))
        whole = self.place / "whole"
        whole.mkdir()
        operations = self.place / "operations"

        def counted() -> None:
            watch_operations(whole, lambda count, _: os.truncate(operations, count))
            carry_out(whole)

        operations.touch()
        start = time.monotonic()
        assert in_child(counted) == DONE, f"{name} fails without a fault"
        self.seconds = time.monotonic() - start
        self.operations = operations.stat().st_size
        self.expected = self.facts_of(whole)
        self.length = len(self.expected or ())

    def facts_of(self, folder: Path) -> list[Any] | None:
        """What is compared, or None where damage is told; read in a child, since threads are not forked."""
        to = self.place / "facts"
        end = in_child(lambda: to.write_bytes(pickle.dumps(self.facts(folder))))
        if end == TOLD:
            return None
        assert end == DONE
        facts: list[Any] = pickle.loads(to.read_bytes())
        return facts

    def folder(self) -> Path:
        """A new one."""
        return Path(tempfile.mkdtemp(dir=self.place))

    def after(self, folder: Path, end: int, *, refusable: bool = False) -> str:
        """What a fault that ended a process so has done: carry out what is left, and compare.

        `refusable` is what was damaged by others, and may be told of instead.
        """
        if end == RAISED:
            return "tracebacks"
        again = in_child(lambda: self.carry_out(folder))
        if again == RAISED:
            return "tracebacks"
        if again != DONE:
            return "survived" if refusable and again == TOLD else "lost"
        facts = self.facts_of(folder)
        if facts is None:
            return "survived" if refusable else "lost"
        if len(facts) > self.length:
            return "doubled"
        verdict = "survived" if facts == self.expected else "undetected"
        shutil.rmtree(folder)
        return verdict


def _run(folder: Path) -> None:
    torch.manual_seed(int.from_bytes(os.urandom(4), "big"))
    train(CONFIG, folder)


def _facts_of_run(folder: Path) -> list[Any]:
    """The result, the weights and the losses."""
    result = without_seconds(train(CONFIG, folder))
    weights = [value.double().sum().item() for value in trained_network(folder).state_dict().values()]
    return [result, weights, pd.read_parquet(folder / "steps.parquet")["loss"].tolist()]


def _sweep(folder: Path) -> None:
    """As ``normless sweep retry``: failed runs, as of a full disk, are carried out again."""
    with Laboratory(folder, executor=Here) as lab:
        rows = lab.state.read(lab.state.hashes())
        lab.state.remove([name for name, row in rows.items() if row.outcome == "failed"])
        lab.run(tiny_sweep())


def _facts_of_sweep(folder: Path) -> list[Any]:
    """Hash and accuracy of each row."""
    with Laboratory(folder, executor=Here) as lab:
        rows = lab.state.read(lab.state.hashes())
    return sorted((name, row.outcome, (row.result or {}).get("test_accuracy")) for name, row in rows.items())


ARTEFACT = "understanding-bn/figure-9"


def _report(folder: Path) -> None:
    """As ``normless reproduce`` of a formula's artefact, and ``normless report``."""
    reproduce(ARTEFACT, out=folder)
    write_pages_of(folder)


def _facts_of_report(folder: Path) -> list[Any]:
    """The numbers and the checks of the artefact, its figure, and the pages but for their dates."""
    one = reproduce(ARTEFACT, out=folder)
    pages = [path.read_text(encoding="utf-8") for path in write_pages_of(folder)]
    figures = [file.stat().st_size for file in sorted(folder.rglob("figure.*"))]
    checks = [(check.claim, check.verdict, dict(check.numbers)) for check in one.checks]
    drawn, ended = [page.count("<svg") for page in pages], [page.rstrip().endswith("</html>") for page in pages]
    return [one.measured.to_csv(), checks, figures, drawn, ended]


def at_operations(work: Work, step: int, do: Callable[[int], Operation], times: int = 1) -> Iterator[str]:
    """The verdict of a fault at each `step`-th operation, in as many attempts."""
    for number in range(1 + step // 2 % work.operations, work.operations + 1, step):
        folder = work.folder()

        def faulty(folder: Path = folder, number: int = number) -> None:
            watch_operations(folder, do(number))
            work.carry_out(folder)

        ends = [in_child(faulty) for _ in range(times)]
        yield work.after(folder, RAISED if RAISED in ends else ends[-1])


def at_random_times(work: Work, trials: int) -> Iterator[str]:
    """Of SIGKILL at random instants, several of one run or sweep."""
    chance = random.Random(0)
    for _ in range(trials):
        folder, end = work.folder(), 0
        for _ in range(3):
            end = in_child(lambda folder=folder: work.carry_out(folder), kill_after=chance.random() * work.seconds)
        yield work.after(folder, end)


def damaged(work: Work, step: int, interrupted: Callable[[Path], None]) -> Iterator[str]:
    """Of flipped bits and of a truncation in each file of interrupted work and of finished work."""
    chance = random.Random(1)
    for make in (interrupted, work.carry_out):
        ready = work.folder()
        assert in_child(lambda make=make, ready=ready: make(ready)) in (DONE, RAISED)
        files = sorted(
            file.relative_to(ready)
            for file in ready.rglob("*")
            if file.is_file() and "tensorboard" not in file.parts and file.stat().st_size
        )
        kinds = ["truncated"] + ["bit"] * max(2, 100 // len(files))
        for file, kind in [(file, kind) for file in files for kind in kinds][::step]:
            folder = work.folder()
            shutil.copytree(ready, folder, dirs_exist_ok=True)
            data = bytearray((folder / file).read_bytes())
            place = chance.randrange(len(data))
            if kind == "bit":
                data[place] ^= 1 << chance.randrange(8)
            (folder / file).write_bytes(data if kind == "bit" else data[:place])
            yield work.after(folder, DONE, refusable=True)


def jumping_clock(work: Work, trials: int) -> Iterator[str]:
    """Of a clock that goes back or forth by years at every look."""
    chance, now = random.Random(2), time.time

    def carry_out(folder: Path) -> None:
        time.time = lambda: now() + chance.uniform(-3e8, 3e8)
        work.carry_out(folder)

    for _ in range(trials):
        folder = work.folder()
        yield work.after(folder, in_child(lambda folder=folder: carry_out(folder)))


def two_at_once(work: Work, trials: int) -> Iterator[str]:
    """Of two processes that carry out the same in one folder."""
    for _ in range(trials):
        folder = work.folder()
        second = os.fork()
        if second == 0:
            os._exit(in_child(lambda folder=folder: work.carry_out(folder)))
        end = in_child(lambda folder=folder: work.carry_out(folder))
        other = os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
        yield work.after(folder, RAISED if RAISED in (end, other) else end)


SPEC = "normless:dense(depth=2, width=8, in_features=4)"


def _network(folder: Path) -> None:
    """Save a network over another, which is there until then."""
    former, new = (_converted(seed) for seed in (0, 1))
    if (folder / "saved").exists():
        # Not a sentence but a lost network.
        assert _weights(nl.load(folder / "net")) in map(_weights, (former, new))
    else:
        nl.save(former, folder / "net", SPEC)
        (folder / "saved").touch()
    nl.save(new, folder / "net", SPEC)


def _converted(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return nl.convert(build_model(SPEC), "skipinit", torch.ones(2, 4))


def _weights(network: torch.nn.Module) -> list[float]:
    return [value.double().sum().item() for value in network.state_dict().values()]


def _facts_of_network(folder: Path) -> list[Any]:
    """The weights."""
    return _weights(nl.load(folder / "net"))


def _interrupted_run(folder: Path) -> None:
    train(CONFIG, folder, listeners=[Interrupt(4)], checkpoint_every="1")


def _interrupted_sweep(folder: Path) -> None:
    """Half of its runs are finished, in a log that was not folded into the table's file."""
    with Laboratory(folder, executor=Here) as lab:
        lab.run(tiny_sweep(replicates=1, best=1))
        os._exit(DONE)


def _interrupted_report(folder: Path) -> None:
    """Without its page."""
    reproduce(ARTEFACT, out=folder)


def _interrupted_network(folder: Path) -> None:
    """Before the other is saved."""
    nl.save(_converted(0), folder / "net", SPEC)


INTERRUPTED = {
    "network": _interrupted_network,
    "run": _interrupted_run,
    "sweep": _interrupted_sweep,
    "report": _interrupted_report,
}


def of_work(work: Work, step: int) -> dict[str, Iterator[str]]:
    """The verdicts of the faults of one kind of work, by their names."""
    trials = max(1, 200 // step)
    few = max(1, trials // 20)
    return {
        f"{work.name}: killed at each of {work.operations} file operations": at_operations(work, step, kill_at),
        f"{work.name}: disk full from each operation on": at_operations(
            work, step, lambda number: refuse_from(number, errno.ENOSPC)
        ),
        f"{work.name}: disk full at each operation": at_operations(
            work, step, lambda number: refuse_from(number, errno.ENOSPC, number)
        ),
        f"{work.name}: quota exceeded at each operation, in four attempts": at_operations(
            work, step, lambda number: refuse_from(number, errno.EDQUOT, number), times=4
        ),
        f"{work.name}: read-only from each operation on": at_operations(
            work, step, lambda number: refuse_from(number, errno.EROFS)
        ),
        f"{work.name}: killed at random instants": at_random_times(work, trials),
        f"{work.name}: clock jumps": jumping_clock(work, few),
        f"{work.name}: two processes": two_at_once(work, few),
        f"{work.name}: damaged files": damaged(work, max(1, step // 4), INTERRUPTED[work.name]),
    }


def main() -> int:
    """Try all faults and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="every N-th fault alone")
    parser.add_argument("--works", nargs="+", default=[*WORKS], choices=WORKS, help="those of these alone")
    arguments = parser.parse_args()
    step: int = arguments.sample
    # Forks have none of the threads of this process.
    torch.set_num_threads(1)
    whole: Counter[str] = Counter()
    sys.stdout.write(f"{'':60}{''.join(f'{name:>12}' for name in COLUMNS)}\n")
    for name in arguments.works:
        work = Work(name, *WORKS[name])
        try:
            for fault, verdicts in of_work(work, step).items():
                counts = Counter(verdicts)
                whole += counts
                _print_row(fault, counts)
        finally:
            shutil.rmtree(work.place, ignore_errors=True)
    _print_row("all", whole)
    return int(whole["survived"] < whole.total())


WORKS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "network": (_network, _facts_of_network),
    "run": (_run, _facts_of_run),
    "sweep": (_sweep, _facts_of_sweep),
    "report": (_report, _facts_of_report),
}


def _print_row(name: str, counts: Counter[str]) -> None:
    values = [counts.total(), *(counts[column] for column in COLUMNS[1:])]
    sys.stdout.write(f"{name:60}{''.join(f'{value:12}' for value in values)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
