"""``normless demo``: the sweep of the demo, its page, and the signal of its deepest networks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace

from normless.cli import add_json_flag
from normless_lab.cli._sweep import run_sweep

if TYPE_CHECKING:
    import pandas as pd

    from normless_lab.sweeps import Laboratory, Sweep
    from normless_lab.sweeps._page import SweepFigure

DEMO = Path(__file__).with_name("demo.yaml")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the place of the runs, the processes and the device."""
    parser.add_argument("--out", type=Path, default=Path("normless-demo"), help="folder of the runs and the page")
    parser.add_argument("--workers", type=int | None, default=None, help="processes; one per core if left out")
    parser.add_argument("--device", type=str, default="cpu", help="as of normless train")
    parser.add_argument("--print", action="store_true", help="print the sweep, to change and run it; train nothing")
    add_json_flag(parser)


def run(namespace: Namespace) -> int:
    """Run the sweep and write its page; return 1 if a run failed."""
    if namespace.print:
        sys.stdout.write(DEMO.read_text("utf-8"))
        return 0
    from normless_lab.sweeps import Sweep

    sweep = Sweep.from_yaml(DEMO)
    sweep = replace(sweep, base={**sweep.base, "device": namespace.device})
    for name, value in {"file": DEMO, "db": None, "metrics": ["test_accuracy"], "page": True}.items():
        namespace[name] = value
    return run_sweep(sweep, namespace, signal_figure)


# How the variance on the skip path grows with the block d, for infinite width and without padding (De & Smith 2020,
# section 2).
LAWS = {"none": "∼ 2ᵈ", "batch_norm": "∼ d", "skipinit": "∼ 1", "fixup": "∼ 1"}


def signal_figure(lab: Laboratory, sweep: Sweep) -> SweepFigure:
    """Draw the variance on the skip path against the block, for each scheme at the largest depth of a sweep.

    The axes of the sweep are `depth`, with numbers as labels, and `scheme`.
    """
    import pandas as pd

    from normless_lab.plots._sweep_figures import skip_variance_against_block
    from normless_lab.sweeps._page import SweepFigure

    depth = max(sweep.axes["depth"], key=float)
    deepest = [labels for labels in sweep.combinations if sweep.named(labels)["depth"] == depth]
    futures = {
        sweep.named(labels)["scheme"]: lab.submit(measure_signal, sweep.settings(labels) | {"seed": sweep.seed})
        for labels in deepest
    }
    signal = pd.concat([future.result().assign(scheme=scheme) for scheme, future in futures.items()])
    caption = (
        f"Variance on the skip path against the block d at initialization, depth {depth}. Points are measured, lines "
        "are predicted from the weights, with padding and small images. Beside the names: the law for infinite width "
        "without padding. With batch norm d starts again where a convolution on the skip path changes the resolution."
    )
    return SweepFigure("skip-variance", skip_variance_against_block(signal, laws=LAWS), caption)


def measure_signal(settings: dict[str, Any]) -> pd.DataFrame:
    """Return the probe `signal` of the network of a run on the first test images."""
    import torch

    from normless.conversion import convert
    from normless.models import build_model
    from normless.probes import probe
    from normless_lab.data import load_data

    data = load_data(settings["data"])
    inputs = next(iter(data.test_batches(128))).inputs
    torch.manual_seed(settings["seed"])
    channels, height, width = data.image_shape
    model = build_model(settings["model"], classes=data.classes, image_shape=(channels, height, width))
    table: pd.DataFrame = probe(convert(model, settings["scheme"], inputs), inputs, ["signal"]).signal
    return table
