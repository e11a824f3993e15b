"""Sweeps and benchmarks of steps, on the simulated card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lab_helpers import Here
from waits import noted_waits

from normless_lab.bench._step import StepBench, measure_inference, measure_memory, measure_step
from normless_lab.sweeps import Laboratory, RateGrid, Sweep, axis_of


@pytest.mark.usefixtures("trains_on_card")
def test_a_sweep(tmp_path: Path) -> None:
    base = {"model": "normless:wide_resnet(depth=10, width=1)", "data": "digits(train=64, test=32)", "epochs": 1}
    sweep = Sweep(
        name="small",
        base=base,
        axes={"scheme": axis_of("scheme", ["fixup", "batch_norm"])},
        rates=RateGrid.powers(-4, -3),
        replicates=1,
        best=1,
    )
    with Laboratory(tmp_path, executor=Here) as lab, noted_waits() as notes:
        runs = lab.run(sweep).runs
    assert notes
    assert len(runs) >= 4
    assert runs["error"].isna().all(), runs["error"].tolist()


@pytest.mark.parametrize("measure", [measure_step, measure_inference, measure_memory])
@pytest.mark.parametrize("width", [0, 1])
def test_benchmarks(card: torch.device, measure: Callable[[StepBench], Any], width: int) -> None:
    bench = StepBench(depth=10 if width else 8, width=width, batch_size=2, image_size=8, rounds=1, device=str(card))
    table = measure(bench)
    assert {"bare", "fixup", "batch_norm"} <= set(table["network"])
    assert (table["ratio"] > 0).all()
