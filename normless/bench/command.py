"""`normless bench WHAT`: the speed claims from the command line."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from normless.output import add_json_flag, print_json


def add_arguments(parser: ArgumentParser) -> None:
    """Declare what the command takes; needs no torch."""
    parser.add_argument("what", choices=["step"], help="step: a training step under each scheme, as a ratio")
    parser.add_argument("--depth", type=int, default=110, help="layers of the CIFAR ResNet")
    parser.add_argument("--batch-size", type=int, default=128, help="images per step")
    parser.add_argument("--image-size", type=int, default=32, help="height and width in pixels")
    parser.add_argument("--rounds", type=int, default=10, help="steps of every network, taken in turns")
    add_json_flag(parser)


def run(arguments: Namespace) -> int:
    """Measure and print; 0 on success."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from normless.bench.step import StepBench, measure_step

    bench = StepBench(arguments.depth, arguments.batch_size, arguments.image_size, arguments.rounds)
    rows = measure_step(bench).to_dict("records")
    setting = (
        f"ResNet-{bench.depth}, {bench.batch_size} images of {bench.image_size}×{bench.image_size}, "
        f"{bench.rounds} rounds, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    if arguments.json:
        print_json({"setting": setting, "rows": rows})
        return 0
    table = Table(title=f"A training step relative to the bare network: {setting}")
    for title in ("network", "seconds", "ratio", "lowest", "highest"):
        table.add_column(title, justify="left" if title == "network" else "right")
    for row in rows:
        table.add_row(row["network"], *(f"{row[key]:.3f}" for key in ("seconds", "ratio", "lowest", "highest")))
    Console().print(table)
    return 0
