"""Runs in turns that note the order of their steps in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lab_helpers import TinyConfig, TinyResult, tiny_result

from normless_lab.sweeps import Kind
from normless_lab.train._turns import GlobalState, hand_over


def steps(config: TinyConfig, directory: Path, **_: Any) -> TinyResult:
    """Execute a run whose epochs are steps; its fate as in `TinyConfig`, and `lacks memory`."""
    if config.fate == "cannot begin":
        raise ValueError("no such fate")
    with GlobalState(torch.device("cpu"), torch.float32).running():
        return _steps(config, directory)


def _steps(config: TinyConfig, directory: Path) -> TinyResult:
    torch.manual_seed(config.seed)
    draws = []
    for epoch in range(1, config.epochs + 1):
        draws.append(float(torch.rand(())))
        with (directory.parent / "order.txt").open("a") as file:
            file.write(f"{config.seed} {epoch}\n")
        if config.fate == "raises" and epoch == 2:
            raise ArithmeticError("no such number")
        if config.fate == "lacks memory" and epoch == 2:
            raise torch.cuda.OutOfMemoryError("out of memory")
        hand_over()
    (directory.parent / f"draws-{config.seed}.txt").write_text(repr(draws))
    return tiny_result(config)


def order(folder: Path) -> list[tuple[int, int]]:
    """Seed and epoch of each step of all runs in a folder, in their order."""
    lines = (folder / "order.txt").read_text().splitlines()
    return [(int(seed), int(epoch)) for seed, epoch in map(str.split, lines)]


TURNING = Kind("lab_helpers:TinyConfig", f"{__name__}:{steps.__name__}", "lab_helpers:TinyResult")
