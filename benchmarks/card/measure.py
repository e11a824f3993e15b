"""The rows of the benchmark of a CUDA card, part by part."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.card.runs import accuracy_configs, measure_accuracy, measure_together
from benchmarks.card.settings import CardBench
from benchmarks.card.steps import matrix_product_flops, measure_steps
from normless_lab.bench._step import REFERENCE, Timer, timer_of
from normless_lab.train._execution import device_name
from normless_lab.train._image_task import ImageTask

Row = dict[str, Any]

_STEP = ("milliseconds", "ratio", "lowest", "highest", "aim", "result", "below_batch_norm", "preparation", "note")
_DRIVER = Path("/proc/driver/nvidia/version")


def measure_card(bench: CardBench, timer: Timer | None = None) -> pd.DataFrame:
    """Measure the parts: a row per measurement, with `part`, device, torch, driver, and the columns of the part.

    Each row is written to standard error as soon as it is measured.

    Args:
        bench: the settings.
        timer: times a step; events on the GPU if None.

    Raises:
        ValueError: torch finds no CUDA device.
        DataNotFoundError: the data of the part accuracy is not available.
    """
    device = torch.device(bench.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "This benchmark needs a CUDA card, and torch finds none here; `normless bench step` measures on the CPU."
        )
    if "accuracy" in bench.parts:
        # Missing data is an error before minutes are spent.
        ImageTask(accuracy_configs(bench)[0])
    facts = {"device": device_name(device), "torch": torch.__version__, "driver": driver_version()}
    rows = []
    for row in _rows(bench, timer or timer_of(device, bench.replays)):
        rows.append({**row, **facts})
        shown = [f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values() if value]
        sys.stderr.write(f"card: {', '.join(shown)}\n")
    table = pd.DataFrame(rows, dtype=object)
    return table.where(table.notna(), None)


def _rows(bench: CardBench, timer: Timer) -> Iterator[Row]:
    """Yield the rows of all parts."""
    device = torch.device(bench.device)
    if {"step", "peak"} & set(bench.parts):
        # A step cannot be captured on the default stream.
        with _own_stream(device):
            peak = matrix_product_flops(bench, timer) / 1e12 if "peak" in bench.parts else None
            yield from _of_steps(measure_steps(bench, timer), peak, bench)
    if "together" in bench.parts:
        yield from _of_part("together", measure_together(bench))
    if "accuracy" in bench.parts:
        yield from _of_part("accuracy", measure_accuracy(bench))


def _own_stream(device: torch.device) -> AbstractContextManager[object]:
    """In the body, a GPU works on a new stream."""
    cuda: Any = torch.cuda
    return torch.cuda.stream(cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def _of_steps(groups: Iterable[list[Row]], peak: float | None, bench: CardBench) -> Iterator[Row]:
    """Yield the rows of the parts step and peak, from the groups of `measure_steps`."""
    for index, rows in enumerate(groups):
        names = ("network", "batch", "mode", "scheme")
        if "step" in bench.parts:
            for row in rows:
                yield {"part": "step", **{name: row.get(name) for name in (*names, *_STEP)}}
        if peak is None:
            continue
        if not index:
            product = f"product of {bench.matrix}×{bench.matrix} matrices"
            yield {"part": "peak", "network": product, "mode": "eager", "TFLOP/s": peak, "share": 1.0}
        bare = next((row["MiB"] for row in rows if row["scheme"] == REFERENCE), None)
        for row in rows:
            memory, speed = row["MiB"], row.get("TFLOP/s")
            yield {
                "part": "peak",
                **{name: row[name] for name in names},
                "MiB": memory,
                "memory_ratio": memory / bare if memory and bare else None,
                "TFLOP/s": speed,
                "share": None if speed is None else speed / peak,
            }


def _of_part(part: str, groups: Iterable[list[Row]]) -> Iterator[Row]:
    """Yield the rows of a part, with its name."""
    for rows in groups:
        for row in rows:
            yield {"part": part, **row}


def driver_version() -> str | None:
    """Return the version of the driver; None if it is not found."""
    with suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout.split()
        if answer:
            return answer[0]
    with suppress(OSError):
        version = re.search(r"\d+\.\d+(\.\d+)?", _DRIVER.read_text("utf-8"))
        return version and version[0]
    return None
