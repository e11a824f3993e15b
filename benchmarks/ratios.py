"""Costs of conversions, probes, watches, sweeps and depth, each a ratio to a reference that alternates with it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from normless._internal.arguments import arguments_of
from normless.conversion import convert
from normless.doctor import Watch
from normless.models import build_with_inputs, resnet_cifar, wide_resnet
from normless.optim import recompute_blocks
from normless.probes import RideAlong, every
from normless.probes._measure import DEFAULT_PROBES
from normless.residual import residual_map
from normless_lab.bench._step import ImageBench, opened, ratio_table, seconds_in_turns, training_step
from normless_lab.process import available_cores, peak_memory, resident_memory
from normless_lab.sweeps import Laboratory, LocalExecutor
from normless_lab.train import TrainConfig

NETWORKS = (
    "torchvision:resnet18",
    "timm:convnext_atto",
    "timm:vit_tiny_patch16_224",
    "torchvision:mobilenet_v2",
)
BEFORE = "as written"


@dataclass(frozen=True)
class ConversionBench:
    """Networks with random weights, texts for `build_model`, and the schemes to convert them by."""

    networks: Sequence[str] = NETWORKS
    schemes: tuple[str, ...] = ("skipinit", "fixup")
    rounds: int = 5


def measure_conversion(bench: ConversionBench) -> pd.DataFrame:
    """Time a step of each network before and after conversion.

    A step consists of a forward and a backward pass in training mode on the network's example inputs; the loss is the
    mean square of its outputs. A row per network and scheme, see `ratio_table`; ratios are to the network as written.

    Raises:
        MissingExtraError: torchvision, timm or transformers is needed and not installed.
    """
    return pd.concat([_measure_network(name, bench) for name in bench.networks], ignore_index=True)


def _measure_network(name: str, bench: ConversionBench) -> pd.DataFrame:
    torch.manual_seed(0)
    model, inputs = build_with_inputs(name)
    arguments, named = arguments_of(inputs)
    networks = {BEFORE: model}
    networks |= {scheme: convert(model, scheme, *arguments, **named) for scheme in bench.schemes}
    steps = {
        scheme: partial(_pass_back, opened(network).train(), arguments, named) for scheme, network in networks.items()
    }
    seconds = seconds_in_turns(steps, bench.rounds)
    table = ratio_table("scheme", seconds, seconds.div(seconds[BEFORE], axis=0))
    table.insert(0, "network", name)
    return table


def _pass_back(network: nn.Module, arguments: Sequence[object], named: dict[str, object]) -> None:
    network.zero_grad()
    outputs = [leaf for leaf in tree_leaves(network(*arguments, **named)) if isinstance(leaf, Tensor)]
    loss = torch.stack([output.square().mean() for output in outputs if output.requires_grad]).sum()
    loss.backward()  # type: ignore[no-untyped-call]


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


@dataclass(frozen=True)
class WatchBench(ImageBench):
    """The ResNet and its batch; the transformer has 4 layers of width 128 and reads 16 sentences of 64 tokens."""

    batch_size: int = 16
    interval: int = 20


def measure_watch(bench: WatchBench) -> pd.DataFrame:
    """Time one interval of watched steps, including its measured step, and as many plain steps.

    A row per network, plain and watched, see `ratio_table`; ratios are to the plain network.
    """
    tables = []
    for name, make in {f"resnet_cifar({bench.depth})": _resnet, "transformer(4)": _transformer}.items():
        plain, watched = make(bench), make(bench)
        watch = Watch(watched[0], bench.interval)
        steps = {
            f"{name}, plain": partial(_repeat, training_step(*plain), bench.interval),
            f"{name}, watched": partial(_repeat, training_step(*watched), bench.interval),
        }
        seconds = seconds_in_turns(steps, bench.rounds) / bench.interval
        watch.close()
        tables.append(ratio_table("network", seconds, seconds.div(seconds[f"{name}, plain"], axis=0)))
    return pd.concat(tables, ignore_index=True)


def _repeat(step: Callable[[], object], count: int) -> None:
    for _ in range(count):
        step()


def _resnet(bench: WatchBench) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    return resnet_cifar(bench.depth), *bench.batch()


def _transformer(_: WatchBench) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    network = nn.Sequential(nn.Embedding(1000, 128), encoder, nn.Flatten(), nn.Linear(128 * 64, 10))
    return network, torch.randint(1000, (16, 64)), torch.randint(10, (16,))


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
            _run_all(labs[name], bench, processes, seeds)
        for _ in range(bench.rounds):
            for name, lab in labs.items():
                rounds[name].append(_run_all(lab, bench, bench.runs, seeds))
    seconds = pd.DataFrame({name: [whole for whole, _ in pairs] for name, pairs in rounds.items()})
    training = pd.DataFrame({name: [steps for _, steps in pairs] for name, pairs in rounds.items()})
    others = seconds[[SEVERAL, ONE]].set_axis([ONE, SEVERAL], axis=1)
    table = ratio_table("executor", seconds, others / seconds)
    for place, column in enumerate(("processes", "threads")):
        table.insert(place + 1, column, [side[place] for side in sides.values()])
    overhead = seconds * table["processes"].to_numpy() / bench.runs - training
    return table.assign(training=training.mean().to_numpy(), overhead=overhead.median().to_numpy())


def _run_all(lab: Laboratory, bench: SweepBench, runs: int, seeds: Iterator[int]) -> tuple[float, float]:
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
    """Time some training measure_steps of each network.

    Returns:
        A row per series and value: varied, recomputed, value, seconds (median of a step), MiB (the highest resident
        memory above that of a small network's step), and of the series the exponents p of the least-squares fits
        log y = p · log value + c, NaN for fewer than two values.
    """
    rows = []
    for varied, recomputed, setting in bench.settings():
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            threads = torch.get_num_threads()
            measured = pool.submit(measure_steps, bench.scheme, recomputed, bench.rounds, threads, **setting).result()
        rows.append({"varied": varied, "recomputed": recomputed, "value": setting[varied], **measured})
    table = pd.DataFrame(rows)
    for _, group in table.groupby(["varied", "recomputed"], sort=False):
        for name, exponent in (("seconds", "time_exponent"), ("MiB", "memory_exponent")):
            logs = np.log(group[["value", name]].to_numpy(float)).T
            table.loc[group.index, exponent] = np.polyfit(*logs, 1)[0] if len(group) > 1 else np.nan
    if bench.out is not None:
        draw_scale(table, bench.out)
    return table


def measure_steps(
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
        lines(
            rows,
            panels[place],
            x="value",
            y=measure,
            by="activations",
            named=lambda kind, _, texts=texts: texts[kind],
            **frame,
        )
    if path.suffix == ".png":
        save_png(panels[0], path)
    else:
        save_svg(panels[0], path)


BENCHMARKS: dict[str, tuple[Any, Callable[[Any], pd.DataFrame]]] = {
    "conversion": (ConversionBench, measure_conversion),
    "probe": (ProbeBench, measure_probes),
    "watch": (WatchBench, measure_watch),
    "sweep": (SweepBench, measure_sweep),
    "scale": (ScaleBench, measure_scale),
}

if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    commands = parser.add_subcommands()
    for name, (settings, _) in BENCHMARKS.items():
        own = ArgumentParser()
        own.add_class_arguments(settings)
        commands.add_subcommand(name, own)
    given = parser.parse_args()
    settings, measure = BENCHMARKS[given.subcommand]
    sys.stdout.write(measure(settings(**given[given.subcommand].as_dict())).to_string(index=False) + "\n")
