"""Fixup as figure 4 trains it, beside gradient descent written out: the same losses, eager and by a graph."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from recorded_graph import RecordedGraph, record_graphs
from torch import Tensor
from torch.nn import functional as F

from normless_lab.train import (
    TrainConfig,
    _loop as loop,
    _optimizers as optimizers,
    _training_run as training_run,
    train,
)
from normless_lab.train._step_graph import WARMUP, StepGraph
from normless_papers.experiments.image_task import PaperTask
from normless_papers.experiments.protocol import asked_by

BLOCKS, STEPS, EPOCHS = 3, 6, 2
# The artefact's own settings, apart from the size of the network, of the batches and of the data.
FIGURE_4 = next(run.config for run in asked_by("fixup/figure-4", "gpu") if run.labels["configuration"] == "Fixup")
CONFIG: Any = replace(
    FIGURE_4,
    model=f"normless:resnet_cifar(depth={2 * BLOCKS + 2})",
    data=f"correlated(train={8 * STEPS}, test=8)",
    batch_size=8,
    crop=4,
    flip=True,
    epochs=EPOCHS,
    precision="64-true",
    device="cpu",
)
SCALARS = ("input_bias", "output_bias", "multiplier")


def logits_of(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """Figure 1 of the paper (right), on ResNets with shortcuts without parameters."""
    h = F.relu(F.conv2d(x, weights["stem.weight"], padding=1) + weights["relu.input_bias"])
    for index in range(BLOCKS):
        own = {name.split(".", 2)[2]: value for name, value in weights.items() if name.startswith(f"blocks.{index}.")}
        added = len(own["conv2.weight"]) - h.shape[1]
        stride = 2 if added else 1
        y = F.conv2d(h + own["conv1.input_bias"], own["conv1.weight"], stride=stride, padding=1)
        y = F.relu(y + own["relu1.input_bias"]) + own["relu1.output_bias"]
        y = F.conv2d(y, own["conv2.weight"], padding=1) * own["conv2.multiplier"]
        skip = F.pad(h[:, :, ::stride, ::stride], (0, 0, 0, 0, added // 2, added // 2))
        h = F.relu(y + own["relu2.input_bias"] + skip)
    features = h.mean((2, 3)) + weights["classifier.input_bias"]
    return F.linear(features, weights["classifier.weight"], weights["classifier.bias"])


def descended(weights: dict[str, Tensor], batches: Iterable[tuple[Tensor, Tensor]], falls: bool) -> list[float]:
    """The losses of m ← 0.9·m + g + 1e-4·w, w ← w − η·m, with η of 0.1, which may fall to 0, a tenth for scalars."""
    moments = {name: torch.zeros_like(value) for name, value in weights.items()}
    losses = []
    for step, (x, targets) in enumerate(batches):
        eta = 0.1 * (1 - step / (EPOCHS * STEPS)) if falls else 0.1
        loss = F.cross_entropy(logits_of(weights, x.double()), targets)
        losses.append(loss.item())
        for (name, value), gradient in zip(
            weights.items(), torch.autograd.grad(loss, list(weights.values())), strict=True
        ):
            moments[name] = 0.9 * moments[name] + gradient + 1e-4 * value.detach()
            value.data -= (eta / 10 if name.endswith(SCALARS) else eta) * moments[name]
    return losses


def expected(config: Any) -> list[float]:
    """The losses by `descended` from the initial weights and batches of a run."""
    task = PaperTask(config)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        weights = {name: value.detach().requires_grad_() for name, value in task.build_network().named_parameters()}
    finally:
        torch.set_default_dtype(default)
    batches = (batch for epoch in range(EPOCHS) for batch in task.train_batches(epoch))
    return descended(weights, batches, falls=config.schedule == "linear")


def losses_in(folder: Path) -> list[float]:
    return list(pd.read_parquet(folder / "steps.parquet")["loss"])


def as_on_a_card(monkeypatch: pytest.MonkeyPatch, *, fused: bool) -> list[RecordedGraph]:
    """Train as on a card: steps are captured and replayed, and losses are read later."""
    assemble, sgd = training_run.assemble, optimizers._sgd

    def assembled(*args: Any) -> Any:
        training = assemble(*args)
        step = partial(training._whole_step, step=0)
        return replace(training, graph=StepGraph(step, training.module, training.optimizer))

    monkeypatch.setattr(training_run, "assemble", assembled)
    monkeypatch.setattr(loop, "reads_at_once", lambda fabric: False)
    monkeypatch.setattr(optimizers, "_sgd", lambda *args: sgd(*args[:-1], fused))
    return record_graphs(monkeypatch)


def test_a_training_is_the_descent_that_the_protocol_says(tmp_path: Path) -> None:
    assert isinstance(CONFIG, TrainConfig)
    train(CONFIG, tmp_path / "run", logger=None)
    found = losses_in(tmp_path / "run")
    assert len(found) == EPOCHS * STEPS
    assert found[-1] != pytest.approx(found[0], rel=1e-3)
    assert found == pytest.approx(expected(CONFIG), rel=1e-10)


# Fused kernels read a rate that is a tensor in single precision.
@pytest.mark.parametrize(("fused", "rounding"), [(False, 1e-10), (True, 1e-6)])
def test_captured_steps_are_that_descent(
    fused: bool, rounding: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, schedule="linear")
    graphs = as_on_a_card(monkeypatch, fused=fused)
    train(config, tmp_path / "run", logger=None)
    assert [graph.replays for graph in graphs] == [EPOCHS * STEPS - WARMUP]
    assert losses_in(tmp_path / "run") == pytest.approx(expected(config), rel=rounding)
