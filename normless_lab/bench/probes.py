"""Time and peak memory of probes relative to a pass without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import pandas as pd
import torch
from torch.nn import functional as F

from normless.conversion import convert
from normless.models import resnet_cifar
from normless.probes import DEFAULT_PROBES, RideAlong, every
from normless.residual import residual_map
from normless_lab.bench.step import ImageBench
from normless_lab.bench.timing import ratio_table, seconds_in_turns
from normless_lab.process import peak_memory, resident_memory

PLAIN = "plain pass"
# The sets with documented costs; each measures all layers.
SETS: Mapping[str, Sequence[str]] = {
    PLAIN: (),
    "signal": ("signal",),
    "gradients": ("gradients",),
    "the usual four": DEFAULT_PROBES,
    "gradient sums": ("gradient_sums",),
}


@dataclass(frozen=True)
class ProbeBench(ImageBench):
    """The network, its `scheme`, and the batch."""

    scheme: str = "xavier"


def measure_probes(bench: ProbeBench) -> pd.DataFrame:
    """Time every set of probes and the plain pass, and measure the peak memory of each in a new process.

    A row per set, see `ratio_table`, with megabytes (peak above the memory before the pass) and memory_ratio; ratios
    are to the plain pass.
    """
    seconds = seconds_in_turns({name: _pass(bench, name) for name in SETS}, bench.rounds)
    # A new process for each, since the high-water mark of a process never falls.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        measured = pool.map(partial(_peak, bench, torch.get_num_threads()), SETS)
        peaks = pd.Series(dict(zip(SETS, measured, strict=True)))
    table = ratio_table("probes", seconds, seconds.div(seconds[PLAIN], axis=0))
    return table.assign(megabytes=peaks.to_numpy(), memory_ratio=(peaks / peaks[PLAIN]).to_numpy())


def _pass(bench: ProbeBench, name: str) -> Callable[..., object]:
    """Return a function that passes the first `count` images forward and backward with a set of probes."""
    torch.manual_seed(0)
    network = convert(resnet_cifar(bench.depth), bench.scheme)
    images, labels = bench.batch()
    blocks = residual_map(network)

    def run(count: int | None = None) -> None:
        with RideAlong(SETS[name], every(1)).during(1, network, blocks, labels[:count]):
            F.cross_entropy(network(images[:count]), labels[:count]).backward()  # type: ignore[no-untyped-call]
        network.zero_grad()

    return run


def _peak(bench: ProbeBench, threads: int, name: str) -> float:
    """Return the megabytes that a pass adds at its peak."""
    torch.set_num_threads(threads)
    run = _pass(bench, name)
    # One-time allocations do not count.
    run(2)
    before = resident_memory()
    run()
    return (peak_memory() - before) / 2**20
