"""The census: networks in a pool of processes, a row of a CSV file for each, resumed where it ended."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass
from itertools import groupby, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import get_type_hints

import pandas as pd

from benchmarks.census.examine import Row, examine
from benchmarks.census.networks import Network, networks
from benchmarks.census.report import summary, write_report
from normless_lab.process import available_cores


@dataclass(frozen=True)
class CensusBench:
    """Which networks are examined, and where the rows go.

    Attributes:
        packages: those of the tables, all if None.
        count: networks of each package, evenly spaced in its table; all if None.
        limit: seconds a network may take.
        workers: processes of one thread each; one per core if None.
        seed: of weights and inputs.
        out: the folder of `census.csv`, whose networks are not examined again, and of `census.md`.
    """

    packages: Sequence[str] | None = None
    count: int | None = None
    limit: int = 300
    workers: int | None = None
    seed: int = 0
    out: Path = Path("census")


def measure_census(bench: CensusBench) -> pd.DataFrame:
    """Examine the networks that have no row yet; a row per package, as in `summary`."""
    listed = networks(bench.packages, bench.count)
    path = Path(bench.out) / "census.csv"
    done = _read(path)
    known = set(zip(done["package"], done["network"], strict=True)) if len(done) else set()
    waiting = _in_turns([network for network in listed if (network.package, network.text) not in known])
    for number, row in enumerate(_examined(waiting, bench), start=1):
        _append(path, row)
        sys.stderr.write(f"{number} of {len(waiting)}: {row['package']} {row['network']}\n")
    table = _read(path)
    write_report(table, path.with_suffix(".md"))
    return summary(table)


def _in_turns(listed: Sequence[Network]) -> list[Network]:
    """The first of every package, then the second of every package, and so on."""
    packages = [list(some) for _, some in groupby(listed, key=lambda network: network.package)]
    return [network for turn in zip_longest(*packages) for network in turn if network is not None]


def _read(path: Path) -> pd.DataFrame:
    """The rows so far; empty cells are texts, not missing."""
    if not path.exists():
        return pd.DataFrame()
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    numbers = [name for name, kind in get_type_hints(Row).items() if kind in (int, float)]
    return table.assign(**{name: pd.to_numeric(table[name], errors="coerce") for name in numbers})


def _append(path: Path, row: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table, fresh = pd.DataFrame([row]), not path.exists()
    # The form of a file that an earlier version began.
    table.to_csv(path, mode="a", header=fresh, index=False, na_rep="nan", lineterminator="\r\n")


def _examined(waiting: Sequence[Network], bench: CensusBench) -> Iterator[dict[str, object]]:
    """The rows, each as soon as it is there; a network that takes too long or ends its process has one too."""
    from pebble import ProcessPool

    workers = available_cores() if bench.workers is None else bench.workers
    context = get_context("spawn")
    # A new process after some networks: what libraries keep of them adds up.
    with ProcessPool(workers, max_tasks=25, initializer=_prepare, context=context) as pool:
        tasks: dict[Future[Row], Network] = {
            pool.schedule(examine, args=(network, bench.seed), timeout=bench.limit): network for network in waiting
        }
        for future in as_completed(tasks):
            network = tasks[future]
            error = future.exception()
            if error is None:
                yield asdict(future.result())
            else:
                what = f"more than {bench.limit} seconds" if isinstance(error, TimeoutError) else f"{error}"
                outcome = f"ended {type(error).__name__}: {what}"
                yield asdict(Row(network.package, network.text, bench.seed, built=outcome))


def _prepare() -> None:
    """Set up a worker: one thread, no standard output, and nothing of what libraries log."""
    from normless_lab.sweeps._processes import prepare_worker

    prepare_worker(1)
    logging.disable(logging.CRITICAL)
