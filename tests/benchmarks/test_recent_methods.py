"""The causal networks of the table of recent methods."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import normless as nl

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


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
