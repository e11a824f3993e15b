"""`normless bench WHAT`: the speed claims from the command line."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from normless.output import add_json_flag, print_json

if TYPE_CHECKING:
    from pandas import DataFrame


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the command takes; needs no torch."""
    parser.add_argument(
        "what",
        choices=["step", "map", "probe", "sweep"],
        help="step: a training step under each scheme, as a ratio to the bare network's; "
        "map: reading a network's residual map, as a ratio to the export that it needs; "
        "probe: measuring all layers, as a ratio to the plain pass that is watched, in seconds and memory; "
        "sweep: runs by workers of one thread each, as a ratio to one process of as many threads",
    )
    parser.add_argument("--depth", type=int, default=None, help="step, probe: layers of the CIFAR ResNet, 110")
    parser.add_argument("--batch-size", type=int, default=None, help="images per step; step, probe: 128, sweep: 32")
    parser.add_argument("--image-size", type=int, default=None, help="step, probe: height and width in pixels, 32")
    parser.add_argument(
        "--networks", nargs="+", default=None, metavar="MODEL", help="map: the networks, ten of the zoos if left out"
    )
    parser.add_argument("--runs", type=int, default=None, help="sweep: runs of a round, 8")
    parser.add_argument("--workers", type=int, default=None, help="sweep: processes; one per core if left out")
    parser.add_argument(
        "--rounds",
        type=int,
        default=None,
        help="how often each is run, taken in turns; step: 10, map and probe: 5, sweep: 3",
    )
    add_json_flag(parser)


def run(arguments: Namespace) -> int:
    """Measure and print; 0 on success."""
    for name in ("batch_size", "rounds", "runs", "workers"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"Expected --{name.replace('_', '-')} to be 1 or more, got {value}.")
    title, setting, rows = {"step": _step, "map": _map, "probe": _probe, "sweep": _sweep}[arguments.what](arguments)
    if arguments.json:
        print_json({"setting": setting, "rows": rows})
        return 0
    _print_table(f"{title}: {setting}", rows)
    return 0


def _step(arguments: Namespace) -> tuple[str, str, list[dict[str, Any]]]:
    from normless.bench.step import StepBench, measure_step

    bench = StepBench(**_given(arguments, "depth", "batch_size", "image_size", "rounds"))
    setting = (
        f"ResNet-{bench.depth}, {bench.batch_size} images of {bench.image_size}×{bench.image_size}, "
        f"{bench.rounds} rounds, {_machine()}"
    )
    return "A training step relative to the bare network", setting, _rows(measure_step(bench))


def _map(arguments: Namespace) -> tuple[str, str, list[dict[str, Any]]]:
    from normless.bench.structure import MapBench, measure_map

    bench = MapBench(**_given(arguments, "networks", "rounds"))
    setting = f"two examples, eval mode, {bench.rounds} rounds, {_machine()}"
    return "The residual map relative to torch.export alone, in seconds", setting, _rows(measure_map(bench))


def _probe(arguments: Namespace) -> tuple[str, str, list[dict[str, Any]]]:
    from normless.bench.probes import ProbeBench, measure_probes

    bench = ProbeBench(**_given(arguments, "depth", "batch_size", "image_size", "rounds"))
    setting = (
        f"ResNet-{bench.depth} by {bench.scheme}, {bench.batch_size} images of "
        f"{bench.image_size}×{bench.image_size}, {bench.rounds} rounds, {_machine()}"
    )
    return "Probes of all layers relative to a plain pass forward and back", setting, _rows(measure_probes(bench))


def _sweep(arguments: Namespace) -> tuple[str, str, list[dict[str, Any]]]:
    from normless.bench.sweep import SweepBench, measure_sweep

    bench = SweepBench(**_given(arguments, "batch_size", "runs", "workers", "rounds"))
    load = f"load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load average unknown"
    rows = _rows(measure_sweep(bench))
    setting = (
        f"{bench.runs} runs of {bench.epochs} epochs on digits in minibatches of {bench.batch_size}, {bench.model}, "
        f"{bench.rounds} rounds"
    )
    return "Runs by workers relative to one process", f"{setting}, {_machine()}, {load} before", rows


def _given(arguments: Namespace, *names: str) -> dict[str, Any]:
    """What was asked for, by name; the benchmark itself says what the rest is."""
    values = {name: getattr(arguments, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _machine() -> str:
    import torch

    return f"{torch.get_num_threads()} threads, torch {torch.__version__}"


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for name, value in rows[0].items():
        table.add_column(name, justify="left" if isinstance(value, str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)
