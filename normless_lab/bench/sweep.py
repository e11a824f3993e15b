"""The gain of a sweep by processes of one thread each, and the overhead of a run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from time import perf_counter

import pandas as pd

from normless_lab.bench.timing import ratio_table
from normless_lab.process import available_cores
from normless_lab.sweeps import Laboratory, LocalExecutor
from normless_lab.train import TrainConfig

ONE = "one process"
SEVERAL = "workers"


@dataclass(frozen=True)
class SweepBench:
    """Rounds of runs on digits, by `workers` processes of one thread each and by one process with as many threads.

    If `workers` is None, there is one per core. Larger batches gain more from a second thread, less from a second
    process.
    """

    model: str = "normless:wide_resnet(depth=16, width=1)"
    epochs: int = 3
    batch_size: int = 32
    runs: int = 8
    workers: int | None = None
    rounds: int = 3


def measure_sweep(bench: SweepBench) -> pd.DataFrame:
    """Execute equal runs by both sides; every process has executed a run before.

    A row per side, see `ratio_table`, with processes and threads (of each); ratios are of the other side's time to
    its own. Also training (seconds of a run's training steps, mean) and
    overhead (seconds of a process per run besides these). RuntimeError if a run fails.
    """
    workers = bench.workers or available_cores()
    sides = {ONE: (1, workers), SEVERAL: (workers, 1)}
    seeds = iter(range(2**31))
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    with ExitStack() as stack:
        labs = {}
        for name, (processes, threads) in sides.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            executor = partial(LocalExecutor, processes, threads=threads)
            labs[name] = stack.enter_context(Laboratory(Path(folder), executor=executor))
            _carry_out(labs[name], bench, processes, seeds)
        for _ in range(bench.rounds):
            for name, lab in labs.items():
                rounds[name].append(_carry_out(lab, bench, bench.runs, seeds))
    seconds = pd.DataFrame({name: [whole for whole, _ in pairs] for name, pairs in rounds.items()})
    training = pd.DataFrame({name: [steps for _, steps in pairs] for name, pairs in rounds.items()})
    others = seconds[[SEVERAL, ONE]].set_axis([ONE, SEVERAL], axis=1)
    table = ratio_table("executor", seconds, others / seconds)
    for place, column in enumerate(("processes", "threads")):
        table.insert(place + 1, column, [side[place] for side in sides.values()])
    overhead = seconds * table["processes"].to_numpy() / bench.runs - training
    return table.assign(training=training.mean().to_numpy(), overhead=overhead.median().to_numpy())


def _carry_out(lab: Laboratory, bench: SweepBench, runs: int, seeds: Iterator[int]) -> tuple[float, float]:
    """Return the wall time of some runs, and the mean over runs of the seconds of their training steps."""
    config = TrainConfig(model=bench.model, epochs=bench.epochs, batch_size=bench.batch_size, device="cpu")
    configs = [replace(config, seed=next(seeds)) for _ in range(runs)]
    start = perf_counter()
    rows = lab.carry_out(configs)
    seconds = perf_counter() - start
    if errors := [row.error for row in rows if row.result is None]:
        raise RuntimeError(f"A run of the benchmark failed with {errors[0]}.")
    epochs = [sum(epoch["seconds"] for epoch in row.result["epochs"]) for row in rows if row.result is not None]
    return seconds, fmean(epochs)
