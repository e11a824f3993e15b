"""Run 20,000 runs that train nothing through Ray, into SQLite and into PostgreSQL, and time what that takes.

Run it from anywhere: `python benchmarks/empty_sweeps.py [--runs N] [--executor local] [--databases sqlite] [--json]`.
The PostgreSQL server is the tests' own, on loopback and thrown away. It is an error if a run is lost or doubled.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from subprocess import run as run_process
from time import perf_counter
from typing import Any

from empty_run import EmptyConfig

from normless_lab.process import available_cores
from normless_lab.sweeps import (
    ExecutorFactory,
    Laboratory,
    LaboratoryListener,
    LocalExecutor,
    RateGrid,
    RunRow,
    RunState,
    Sweep,
    axis_of,
)
from normless_lab.sweeps._clusters import RayExecutor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "sweeps"))

from postgres_helpers import ThrowawayPostgres  # noqa: E402

RATES = RateGrid(RateGrid.powers(-6, 3).rates, None)
REPLICATES = 20
# Per core; run before the clock starts, so that the worker processes have imported what they need.
WARM_UP_RUNS = 8


class Counting(LaboratoryListener):
    """Counts how often each run was finished, and how often one was tried again."""

    def __init__(self) -> None:
        self.finished: Counter[str] = Counter()
        self.resubmitted = 0

    def on_runs(self, rows: Sequence[RunRow]) -> None:
        """Count them."""
        self.finished.update(row.hash for row in rows)

    def on_resubmit(self, config_hash: str, error: str) -> None:
        """Count it."""
        self.resubmitted += 1


def sweep_of(runs: int) -> Sweep:
    """As many runs as asked for, in groups of 10 rates and 20 replicates.

    Raises:
        ValueError: it is no multiple of 200.
    """
    groups, rest = divmod(runs, len(RATES.rates) * REPLICATES)
    if rest or not groups:
        raise ValueError(f"Expected a multiple of {len(RATES.rates) * REPLICATES} runs, got {runs}.")
    axes = {"group": axis_of("group", list(range(groups)))}
    return Sweep("scale", {}, axes, RATES, REPLICATES, best=12, run=EmptyConfig.KIND)


def measure(sweep: Sweep, url: str, folder: Path, executor: ExecutorFactory) -> dict[str, Any]:
    """Run the sweep, and ask for it again in a process of its own.

    Returns:
        seconds and runs_per_second end to end, from asking for the sweep to having its tables, worker processes being
        warm; restart_seconds of asking again in a new process, imports included, and restart_run_seconds of that
        without them; counts; load average (processes that wanted a core, over a minute) before and after.

    Raises:
        RuntimeError: a run was lost or doubled.
    """
    counting = Counting()
    before = os.getloadavg()[0]
    with Laboratory(folder, url=url, executor=executor, listener=counting) as lab:
        lab.carry_out([EmptyConfig(group=-1, seed=seed) for seed in range(WARM_UP_RUNS * available_cores())])
        counting.finished.clear()
        start = perf_counter()
        result = lab.run(sweep)
        seconds = perf_counter() - start
    start = perf_counter()
    again = run_process(
        [sys.executable, __file__, "--restart", url, "--runs", str(len(result.runs))],
        check=True,
        capture_output=True,
        text=True,
    )
    restart = perf_counter() - start
    wanted = {point.config.hash for point in sweep.points()}
    with RunState(url) as state:
        rows = state.hashes()
    lost = len(wanted - rows)
    doubled = sum(count > 1 for count in counting.finished.values())
    if lost or doubled or len(result.runs) != len(wanted) or set(counting.finished) != wanted:
        raise RuntimeError(f"Of {len(wanted)} runs {lost} were lost and {doubled} finished twice.")
    return {
        "runs": len(wanted),
        "seconds": seconds,
        "runs_per_second": len(wanted) / seconds,
        "restart_seconds": restart,
        "restart_run_seconds": json.loads(again.stdout)["seconds"],
        "lost": lost,
        "doubled": doubled,
        "resubmitted": counting.resubmitted,
        "load_before": before,
        "load_after": os.getloadavg()[0],
    }


def restart(runs: int, url: str) -> float:
    """Seconds to ask for a finished sweep again.

    Raises:
        RuntimeError: it was not finished.
    """

    def no_executor() -> LocalExecutor:
        raise RuntimeError("A finished sweep was to be run again.")

    start = perf_counter()
    with tempfile.TemporaryDirectory() as folder, Laboratory(Path(folder), url=url, executor=no_executor) as lab:
        result = lab.run(sweep_of(runs))
    if result.missing:
        raise RuntimeError(f"{result.missing} runs are missing.")
    return perf_counter() - start


@contextmanager
def database(name: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if name == "sqlite":
        yield f"sqlite:///{folder / 'scale.sqlite'}"
        return
    server = ThrowawayPostgres()
    try:
        server.start()
        yield server.new_database("scale")
    finally:
        server.remove()


def main() -> int:
    """Measure and print."""
    arguments = _arguments()
    if arguments.restart is not None:
        sys.stdout.write(json.dumps({"seconds": restart(arguments.runs, arguments.restart)}))
        return 0
    sweep = sweep_of(arguments.runs)
    measured = {}
    for name in arguments.databases:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = stack.enter_context(database(name, folder))
            executor = RayExecutor if arguments.executor == "ray" else LocalExecutor
            measured[name] = measure(sweep, url, folder, partial(executor, workers=arguments.workers))
        if not arguments.json:
            sys.stdout.write(_line(name, arguments.executor, measured[name]))
            sys.stdout.flush()
    if arguments.json:
        sys.stdout.write(json.dumps({"executor": arguments.executor, "cores": available_cores(), **measured}) + "\n")
    return 0


def _line(name: str, executor: str, found: dict[str, Any]) -> str:
    return (
        f"{name} through {executor}: {found['runs']} runs in {found['seconds']:.1f} s, "
        f"{found['runs_per_second']:.0f} runs/s; asked for again {found['restart_run_seconds']:.2f} s, "
        f"{found['restart_seconds']:.2f} s with the start of the process; {found['lost']} lost, {found['doubled']} "
        f"doubled, {found['resubmitted']} tried again; {available_cores()} cores, load average "
        f"{found['load_before']:.1f} before and {found['load_after']:.1f} after\n"
    )


def _arguments() -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20_000, help="how many, a multiple of 200")
    parser.add_argument("--executor", choices=["ray", "local"], default="ray")
    parser.add_argument("--databases", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"])
    parser.add_argument("--workers", type=int, default=None, help="worker processes; one per core if left out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--restart", metavar="URL", default=None, help="only ask for the finished sweep again")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
