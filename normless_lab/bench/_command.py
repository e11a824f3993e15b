"""``normless bench``: what a training step and inference cost under each scheme."""

from __future__ import annotations

import os
import platform
from argparse import ArgumentParser, Namespace
from dataclasses import fields
from pathlib import Path
from typing import Any

from normless.cli import add_json_flag, answer, as_text, table
from normless_lab.process import available_cores

BENCHMARKS = {
    "step": "a training step under each scheme, as a ratio to that of the same convolutions written by hand",
    "inference": "a pass in eval mode under each scheme, as it is and fused, as a ratio to the bare network's",
    "memory": "memory that a training step keeps under each scheme, as a ratio to the bare network's",
}
NUMBERS = {
    "depth": "layers of the network, 110",
    "width": "of a Wide-ResNet, in the place of the CIFAR ResNet",
    "batch_size": "images per step, 64",
    "image_size": "height and width in pixels, 32",
    "rounds": "how often each is run, taken in turns, 10",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    texts = [f"{name}: {summary}" for name, summary in BENCHMARKS.items()]
    parser.add_argument("what", choices=list(BENCHMARKS), help="\n".join(texts))
    for name, text in NUMBERS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=None, help=text)
    parser.add_argument("--device", default=None, help="name of a torch device; default: cpu")
    add_json_flag(parser)


def run(arguments: Namespace) -> int:
    """Measure and print; 0 on success."""
    flags = {name: value for name, value in vars(arguments).items() if value is not None}
    for name in ("batch_size", "rounds"):
        if flags.get(name, 1) < 1:
            raise ValueError(f"Expected --{name.replace('_', '-')} to be 1 or more, got {flags[name]}.")
    from normless_lab.bench._step import StepBench

    bench = StepBench(**{field.name: flags[field.name] for field in fields(StepBench) if field.name in flags})
    size = f"{bench.image_size}×{bench.image_size}"
    setting = (
        f"{bench.network} on {bench.device}, {bench.batch_size} images of {size}, {bench.rounds} rounds, {_machine()}"
    )
    rows = measured(arguments.what, bench)
    cells = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    shown = as_text(table(list(rows[0]), cells, right=tuple(range(1, len(rows[0])))))
    facts = {"setting": setting, "rows": rows}
    return answer(arguments, facts, f"{BENCHMARKS[arguments.what]}: {setting}\n{shown}")


def measured(what: str, bench: Any) -> list[dict[str, Any]]:
    """Return the rows of a benchmark's table."""
    from normless_lab.bench import _step as benchmarks

    measure = {
        "step": benchmarks.measure_step,
        "inference": benchmarks.measure_inference,
        "memory": benchmarks.measure_memory,
    }[what]
    return [{str(name): value for name, value in row.items()} for row in measure(bench).to_dict("records")]


def _machine() -> str:
    """Return processor, cores, threads, torch and load of this machine."""
    import torch

    path = Path("/proc/cpuinfo")
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return (
        f"{next(iter(models), platform.processor() or platform.machine())}, {available_cores()} cores, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, load average {load}"
    )
