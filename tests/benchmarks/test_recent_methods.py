"""The sweep of the table of recent methods: its runs exist, have the same batches, and can be repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import normless as nl
from normless_lab.sweeps import Sweep

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["digits", "text"])
def test_a_run_of_every_method(task: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from small_transformers import carry_out, maps_of

    sweep = Sweep.from_yaml(BENCHMARKS / "recent_methods.yaml")
    assert sweep.rates.rates == (0.001, 0.00316, 0.01)
    configs: dict[str, Any] = {
        point.labels["method"]: point.config for point in sweep.points() if point.labels["task"] == task
    }
    assert len(configs) == 14
    for method, config in configs.items():
        before, after = maps_of(replace(config, layers=2, steps=2, rate=1.0))
        assert before.depth == after.depth == 4, method
    threads = torch.get_num_threads()
    short = replace(configs["completep(base_depth=4)"], layers=1, steps=2)
    first, second = carry_out(short, tmp_path), carry_out(short, tmp_path)
    torch.set_num_threads(threads)
    assert first == second
    assert (first.steps, 0 < first.validation_loss < 10) == (2, True)


def test_a_causal_network_does_not_look_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from small_transformers import SmallTransformerConfig, build, task_of

    config, task = SmallTransformerConfig(task="text", scheme="skipinit", layers=2), task_of("text")
    assert torch.equal(task.test.inputs[0, 1:], task.test.targets[0, :-1])
    inputs = task.test.inputs[:2].clone()
    network = nl.convert(build(config), "skipinit(alpha=1)", inputs)
    before = network(inputs)
    inputs[:, 20:] = (inputs[:, 20:] + 1) % task.classes
    after = network(inputs)
    torch.testing.assert_close(after[:, :20], before[:, :20])
    assert not torch.allclose(after[:, 20:], before[:, 20:])
