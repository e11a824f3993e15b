"""Kill networks, runs, sweeps and reports at every file operation, fill the disk or damage files; check what is left.

``make faults`` tries all; with ``--sample N`` it is every N-th, with ``--works`` those of some of the seven. It
prints a table and exits with 1 if a fault lost, doubled or silently changed anything, or ended in a traceback.
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from fault_operations import DONE, RAISED, Operation, in_child, kill_at, refuse_from, watch_operations
from fault_works import INTERRUPTED, WORKS, Work

COLUMNS = ("tried", "survived", "lost", "doubled", "undetected", "tracebacks")


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


def _print_row(name: str, counts: Counter[str]) -> None:
    values = [counts.total(), *(counts[column] for column in COLUMNS[1:])]
    sys.stdout.write(f"{name:60}{''.join(f'{value:12}' for value in values)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
