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
from types import MappingProxyType

import pandas as pd
import torch
from torch.nn import functional as F

from normless.bench.timing import ratio_table, seconds_in_turns
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


def measure_probes(bench: ProbeBench) -> pd.DataFrame:
    """Time every set of probes and the plain pass in turn; measure peak memory of each in a new process.

    Returns:
        A row per set: probes, seconds (median), ratio (median over rounds of its time to the plain pass's in the
        same round), lowest and highest of these ratios; megabytes (peak above the memory before the pass) and
        memory_ratio to the plain pass's.
    """
    seconds = seconds_in_turns({name: _pass(bench, name) for name in SETS}, bench.rounds)
    peaks = pd.Series({name: _peak_of(bench, name) for name in SETS})
    table = ratio_table("probes", seconds, seconds.div(seconds[PLAIN], axis=0))
    return table.assign(megabytes=peaks.to_numpy(), memory_ratio=(peaks / peaks[PLAIN]).to_numpy())


def _pass(bench: ProbeBench, name: str) -> Callable[..., object]:
    """A forward and backward pass with a set of probes, of the first `count` images; the gradients are discarded."""
    torch.manual_seed(0)
    network = convert(resnet_cifar(bench.depth), bench.scheme)
    images = torch.randn(bench.batch_size, 3, bench.image_size, bench.image_size)
    labels = torch.randint(10, (bench.batch_size,))
    blocks = residual_map(network)

    def run(count: int | None = None) -> None:
        if SETS[name]:
            probe(network, (images[:count], labels[:count]), SETS[name], residual_map=blocks)
        else:
            F.cross_entropy(network(images[:count]), labels[:count]).backward()  # type: ignore[no-untyped-call]
            network.zero_grad()

    return run


def _peak_of(bench: ProbeBench, name: str) -> float:
    """The peak in a new process, since the high-water mark of a process never falls."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak, bench, name, torch.get_num_threads()).result()


def _peak(bench: ProbeBench, name: str, threads: int) -> float:
    """Megabytes at the peak of a pass above those before it."""
    torch.set_num_threads(threads)
    run = _pass(bench, name)
    # One-time allocations are no cost of the pass.
    run(2)
    before = _resident()
    run()
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit - before


def _resident() -> float:
    """Resident megabytes of the process; its high-water mark where /proc is missing."""
    try:
        pages = int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1])
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return pages * resource.getpagesize() / 2**20
