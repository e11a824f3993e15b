"""What probes cost beside the plain pass that they watch: seconds, and memory at its peak."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from types import MappingProxyType

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normless.conversion import convert
from normless.models import resnet_cifar
from normless.probes import make_watchers, measured_tables
from normless.residual import residual_map

PLAIN = "plain pass"
# The sets whose cost is claimed; both measure all layers.
SETS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        PLAIN: (),
        "signal, gradients, logits": ("signal", "gradients", "logits"),
        "gradient sums": ("gradient_sums",),
    }
)


@dataclass(frozen=True)
class ProbeBench:
    """What to measure.

    Attributes:
        depth: layers of the CIFAR ResNet.
        scheme: what it is converted by.
        batch_size: images per pass.
        image_size: their height and width in pixels.
        rounds: how often every set is measured; they take turns.
    """

    depth: int = 110
    scheme: str = "xavier"
    batch_size: int = 128
    image_size: int = 32
    rounds: int = 5


@dataclass(frozen=True)
class _Pass:
    network: nn.Module
    images: Tensor
    labels: Tensor

    def of(self, probes: Sequence[str]) -> Callable[[], object]:
        """A pass forward and back, watched by the probes, if there are any."""
        if not probes:
            return self.plain
        found = residual_map(self.network)
        watchers = make_watchers(probes)
        return lambda: measured_tables(self.network, watchers, self.images, self.labels, residual_map=found)

    def plain(self) -> None:
        """Forward and back, and the gradients thrown away."""
        F.cross_entropy(self.network(self.images), self.labels).backward()  # type: ignore[no-untyped-call]
        self.network.zero_grad()


def measure_probes(bench: ProbeBench) -> pd.DataFrame:
    """Time every set of probes in turn with the plain pass; measure peak memory in a process of its own for each.

    Returns:
        A row per set: probes, seconds (median), ratio (median over rounds of its time to the plain pass's in the
        same round), lowest and highest of these ratios; megabytes (peak above what the process held before the
        pass) and memory_ratio to the plain pass's.
    """
    made = _made(bench)
    runs = {name: made.of(probes) for name, probes in SETS.items()}
    for run in runs.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(bench.rounds):
        for name, run in runs.items():
            start = perf_counter()
            run()
            times[name].append(perf_counter() - start)
    seconds = pd.DataFrame(times)
    ratios = seconds.div(seconds[PLAIN], axis=0)
    peaks = pd.Series({name: _peak_of(bench, name) for name in runs})
    return pd.DataFrame(
        {
            "probes": seconds.columns,
            "seconds": seconds.median().to_numpy(),
            "ratio": ratios.median().to_numpy(),
            "lowest": ratios.min().to_numpy(),
            "highest": ratios.max().to_numpy(),
            "megabytes": peaks.to_numpy(),
            "memory_ratio": (peaks / peaks[PLAIN]).to_numpy(),
        }
    )


def _made(bench: ProbeBench) -> _Pass:
    torch.manual_seed(0)
    network = convert(resnet_cifar(bench.depth), bench.scheme)
    images = torch.randn(bench.batch_size, 3, bench.image_size, bench.image_size)
    return _Pass(network, images, torch.randint(10, (bench.batch_size,)))


def _peak_of(bench: ProbeBench, name: str) -> float:
    """In a new process: the high-water mark of a process never falls."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak, bench, name, torch.get_num_threads()).result()


def _peak(bench: ProbeBench, name: str, threads: int) -> float:
    """Megabytes at the peak of a pass above those held before it."""
    torch.set_num_threads(threads)
    made = _made(bench)
    small = _Pass(made.network, made.images[:2], made.labels[:2])
    # What is loaded and allocated once is no cost of the pass.
    small.of(SETS[name])()
    before = _resident()
    made.of(SETS[name])()
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit - before


def _resident() -> float:
    """Megabytes that the process holds now; its high-water mark where that is not told."""
    try:
        pages = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1])
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return pages * resource.getpagesize() / 2**20
