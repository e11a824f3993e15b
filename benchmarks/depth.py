"""Seconds and memory of each stage of a very deep network's training: build, map, convert, and two steps.

    python benchmarks/depth.py --depth 10000 --scheme fixup

A Wide-ResNet of width 1 on random 8×8 images; its blocks are recomputed, and weights updated during the backward
pass unless --plain says otherwise. Memory is this process's: resident, of it what is no file, as libraries are, and
the peak.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import torch
from torch import nn
from torch.nn import functional as F

import normless as nl
from normless.models import wide_resnet

Result = TypeVar("Result")


def memory() -> str:
    """Resident memory, its part that is no file, and its peak so far, in MiB."""
    lines = (line.split() for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines if words and words[-1] == "kB"}
    return f"{sizes['VmRSS']:6.0f} resident {sizes['RssAnon']:6.0f} anonymous {sizes['VmHWM']:6.0f} peak, MiB"


def told(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def timed(name: str, stage: Callable[[], Result]) -> Result:
    """Run a stage and print its seconds and the memory after it."""
    start = perf_counter()
    result = stage()
    told(f"{name:10s} {perf_counter() - start:7.2f} s {memory()}")
    return result


def step(network: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Forward pass, backward pass, and what is left to update."""
    optimizer.zero_grad()
    loss = timed("  forward", lambda: F.cross_entropy(network(images), labels))
    timed("  backward", loss.backward)
    timed("  update", optimizer.step)


def main() -> None:
    """Measure one network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--scheme", default="fixup")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--plain", action="store_true", help="the optimizer's steps follow the backward pass")
    given = parser.parse_args()
    torch.manual_seed(0)
    images, labels = torch.randn(given.batch, 1, 8, 8), torch.randint(10, (given.batch,))
    # What torch loads and allocates at the first step of a process is no part of the network's.
    train(10, given, images, labels, lambda _, stage: stage())
    told(f"torch itself         {memory()}")
    train(given.depth, given, images, labels, timed)


def train(
    depth: int,
    given: argparse.Namespace,
    images: torch.Tensor,
    labels: torch.Tensor,
    stage: Callable[[str, Callable[[], object]], object],
) -> None:
    """Run the stages for a network of one depth."""
    network = stage("build", lambda: wide_resnet(depth, 1, in_channels=1, initialization=None))
    mapped = stage("map", lambda: nl.residual_map(network))
    network = stage("convert", lambda: nl.convert(network, given.scheme, residual_map=mapped, in_place=True))
    nl.optim.recompute_blocks(network, residual_map=mapped)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    if not given.plain:
        nl.optim.step_in_backward(optimizer)
    for _ in range(given.steps):
        stage("step", lambda: step(network, optimizer, images, labels))


if __name__ == "__main__":
    main()
