"""Read the records of torchinstruments as alarms; it states neither scores nor diagnoses.

Its documentation names what a reader should look for: values that are not finite, gradients that vanish by orders of
magnitude at a layer, and layers whose outputs are zeros. Each is an alarm here, with the name of the layer.
"""

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from tests.faults.catalogue import Loop, Training
from tests.faults.diagnosers import on_one_batch
from tests.faults.training import run_loop

STEPS = 5
# "Orders of magnitude": three.
VANISHED = 1e-3


def torchinstruments_diagnose(training: Training) -> list[str]:
    """Return the alarms that the records of five steps give."""
    return _alarms(training.model, lambda: on_one_batch(training, STEPS))


def torchinstruments_watch(loop: Loop) -> list[str]:
    """Return the alarms that the records of a loop give."""
    return _alarms(loop.model, lambda: run_loop(loop))


def _alarms(model: nn.Module, run: Callable[[], object]) -> list[str]:
    tool: Any = importlib.import_module("torchinstruments")
    with tempfile.TemporaryDirectory() as folder:
        tool.inject_observer(
            model, output_dir=folder, sampler=tool.EveryNForwardsSampler(1), selector=tool.leaf_modules()
        )
        try:
            run()
        finally:
            tool.remove_observer(model)
        file = Path(folder, "history.parquet")
        return _read(pd.read_parquet(file)) if file.exists() else []


def _read(history: pd.DataFrame) -> list[str]:
    known = history.dropna(subset=["value"])
    largest = known.groupby(["signal", "metric", "layer"], sort=False)["value"].max()

    def of(signal: str, metric: str) -> dict[str, float]:
        found = largest.get((signal, metric))
        return {} if found is None else {str(layer): float(value) for layer, value in found.items()}

    texts = []
    for signal, word in (("output", "output"), ("output_gradient", "gradient")):
        texts += [
            f"The {word} of {layer} is not finite (NaN or infinite)."
            for layer, share in of(signal, "nonfinite_fraction").items()
            if share > 0
        ]
    smallest = known[known["metric"] == "zero_fraction"].groupby(["signal", "layer"], sort=False)["value"].min()
    for (signal, layer), share in smallest.items():
        if share == 1.0:
            texts.append(f"The {'output' if signal == 'output' else 'gradient'} of {layer} is exactly zero.")
    scales = of("output_gradient", "std")
    texts += [
        f"The gradient vanishes at {layer}: its standard deviation is {scale:.1e}."
        for layer, scale in scales.items()
        if 0 < scale < VANISHED * max(scales.values())
    ]
    return texts
