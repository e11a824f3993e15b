"""How seconds and memory of a training step grow with depth, width and batch, with and without recomputation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch

from normless.conversion import convert
from normless.models import wide_resnet
from normless.optim import recompute_blocks
from normless_lab.bench.step import training_step
from normless_lab.process import peak_memory

BASE = {"depth": 100, "width": 1, "batch": 64}
# Between the ends of each series all other settings are those of BASE.
SERIES = {
    "depth": (40, 100, 250, 502, 1000),
    "width": (1, 2, 4, 8),
    "batch": (16, 64, 256, 1024),
}


@dataclass(frozen=True)
class ScaleBench:
    """Wide-ResNets by a scheme on random 8×8 images, each in a new process.

    `depths`, `widths` and `batches` are the values of one setting while the others are those of `BASE`; an empty
    series is left out. `rounds` is the number of timed steps. `out` is the SVG or PNG file of a figure, if any.
    """

    scheme: str = "skipinit"
    depths: tuple[int, ...] = SERIES["depth"]
    widths: tuple[int, ...] = SERIES["width"]
    batches: tuple[int, ...] = SERIES["batch"]
    rounds: int = 3
    out: Path | None = None

    def settings(self) -> Iterator[tuple[str, bool, dict[str, int]]]:
        """Yield the setting that varies, whether activations are recomputed, and depth, width and batch."""
        for varied, values in (("depth", self.depths), ("width", self.widths), ("batch", self.batches)):
            for recomputed in (False, True):
                for value in values:
                    yield varied, recomputed, BASE | {varied: value}


def measure_scale(bench: ScaleBench) -> pd.DataFrame:
    """Time some training steps of each network.

    Returns:
        A row per series and value: varied, recomputed, value, seconds (median of a step), MiB (the highest resident
        memory above that of a small network's step), and of the series the exponents p of the least-squares fits
        log y = p · log value + c, NaN for fewer than two values.
    """
    rows = []
    for varied, recomputed, setting in bench.settings():
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            threads = torch.get_num_threads()
            measured = pool.submit(steps, bench.scheme, recomputed, bench.rounds, threads, **setting).result()
        rows.append({"varied": varied, "recomputed": recomputed, "value": setting[varied], **measured})
    table = pd.DataFrame(rows)
    for _, group in table.groupby(["varied", "recomputed"], sort=False):
        for name, exponent in (("seconds", "time_exponent"), ("MiB", "memory_exponent")):
            table.loc[group.index, exponent] = _exponent(group["value"], group[name])
    if bench.out is not None:
        draw_scale(table, bench.out)
    return table


def steps(
    scheme: str, recomputed: bool, rounds: int, threads: int, *, depth: int, width: int, batch: int
) -> dict[str, float]:
    """Return the median seconds of a step, and the MiB that the process grew at its peak."""
    torch.set_num_threads(threads)
    # One-time allocations of torch do not count.
    _training(scheme, False, 10, 1, 16)()
    before = peak_memory()
    step = _training(scheme, recomputed, depth, width, batch)
    seconds = []
    for _ in range(rounds + 1):
        start = perf_counter()
        step()
        seconds.append(perf_counter() - start)
    return {"seconds": median(seconds[1:]), "MiB": (peak_memory() - before) / 2**20}


def _training(scheme: str, recomputed: bool, depth: int, width: int, batch: int) -> Callable[[], object]:
    """Return a step of a network on random images, both in channels-last order."""
    torch.manual_seed(0)
    images = torch.randn(batch, 1, 8, 8).contiguous(memory_format=torch.channels_last)
    network = convert(wide_resnet(depth, width, in_channels=1, initialization=None), scheme, in_place=True)
    if recomputed:
        recompute_blocks(network)
    return training_step(network.to(memory_format=torch.channels_last), images, torch.randint(10, (batch,)))


def _exponent(x: Any, y: Any) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0]) if len(x) > 1 else float("nan")


def draw_scale(table: pd.DataFrame, path: Path) -> None:
    """Draw seconds above memory, a panel for each setting that varied, and write the figure as SVG or PNG."""
    from normless_lab.plots import lines, new_panels, save_png, save_svg

    names = list(dict.fromkeys(table["varied"]))
    panels = new_panels(len(names), 2, width=4.8, height=3.0)
    kinds = table["recomputed"].map({False: "kept", True: "recomputed"})
    for place, (name, measure) in enumerate((name, measure) for measure in ("seconds", "MiB") for name in names):
        rows = table.assign(activations=kinds)[table["varied"] == name]
        unit, exponent = ("s", "time_exponent") if measure == "seconds" else ("MiB", "memory_exponent")
        powers = rows.groupby("activations")[exponent].first()
        texts = {kind: f"{kind}, power {power:.2f}" for kind, power in powers.items()}
        title = f"{'Time' if unit == 's' else 'Memory'} of a step against {name}"
        frame: Any = {"title": title, "x_label": name, "y_label": unit, "log": "xy"}
        lines(rows, panels[place], x="value", y=measure, by="activations", named=partial(_end, texts), **frame)
    if path.suffix == ".png":
        save_png(panels[0], path)
    else:
        save_svg(panels[0], path)


def _end(texts: dict[str, str], kind: str, _: float) -> str:
    return texts[kind]
