"""Time and peak memory of probes relative to a pass without them."""

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
from normless.probes import probe
from normless.residual import residual_map

PLAIN = "plain pass"
# The sets with documented costs; both measure all layers.
SETS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        PLAIN: (),
        "signal, gradients, logits": ("signal", "gradients", "logits"),
        "gradient sums": ("gradient_sums",),
    }
)


@dataclass(frozen=True)
class ProbeBench:
    """The network, the batch and the number of measurements.

    Attributes:
        depth: layers of the CIFAR ResNet.
        scheme: of its conversion.
        batch_size: images per pass.
        image_size: their height and width in pixels.
        rounds: number of measurements of every set, in turn.
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
        """A forward and backward pass, with probes if there are any."""
        if not probes:
            return self.plain
        found = residual_map(self.network)
        return lambda: probe(self.network, (self.images, self.labels), probes, residual_map=found)

    def plain(self) -> None:
        """A forward and backward pass; gradients are discarded."""
        F.cross_entropy(self.network(self.images), self.labels).backward()  # type: ignore[no-untyped-call]
        self.network.zero_grad()


def measure_probes(bench: ProbeBench) -> pd.DataFrame:
    """Time every set of probes and the plain pass in turn; measure peak memory of each in a new process.

    Returns:
        A row per set: probes, seconds (median), ratio (median over rounds of its time to the plain pass's in the
        same round), lowest and highest of these ratios; megabytes (peak above the memory before the pass) and
        memory_ratio to the plain pass's.
    """
    setup = _setup(bench)
    runs = {name: setup.of(probes) for name, probes in SETS.items()}
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


def _setup(bench: ProbeBench) -> _Pass:
    torch.manual_seed(0)
    network = convert(resnet_cifar(bench.depth), bench.scheme)
    images = torch.randn(bench.batch_size, 3, bench.image_size, bench.image_size)
    return _Pass(network, images, torch.randint(10, (bench.batch_size,)))


def _peak_of(bench: ProbeBench, name: str) -> float:
    """The peak in a new process, since the high-water mark of a process never falls."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak, bench, name, torch.get_num_threads()).result()


def _peak(bench: ProbeBench, name: str, threads: int) -> float:
    """Megabytes at the peak of a pass above those before it."""
    torch.set_num_threads(threads)
    setup = _setup(bench)
    small = _Pass(setup.network, setup.images[:2], setup.labels[:2])
    # One-time allocations are no cost of the pass.
    small.of(SETS[name])()
    before = _resident()
    setup.of(SETS[name])()
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit - before


def _resident() -> float:
    """Resident megabytes of the process; its high-water mark where /proc is missing."""
    try:
        pages = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1])
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return pages * resource.getpagesize() / 2**20
