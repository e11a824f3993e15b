"""Moments, histograms, logits, classes and landscapes of a network of another library and of one on tokens."""

from __future__ import annotations

import pytest
import torch
from gallery import ROWS

from normless.probes import observe
from normless.probes.moments import ChannelMoments, GradientMoments, LogitGradients
from normless.residual import residual_map
from normless_papers.probes import LogitGradientMatrix
from normless_papers.probes.class_gradients import classwise_gradients
from normless_papers.probes.divergence import find_divergence, largest_stable_rate
from normless_papers.probes.histograms import (
    ActivationHistograms,
    OutputGradientHistograms,
    ParameterGradientHistograms,
)
from normless_papers.probes.loss_landscape import loss_along, moments_along, steepest_descent


@pytest.mark.parametrize("name", ["ResNet-18", "hf BERT"])
def test_one_pass_measures_everything(name: str) -> None:
    row = ROWS[name]
    model, (inputs, named) = row.network(), row.example()
    x = inputs[0] if inputs else named
    output = model(*inputs, **named)
    examples, classes = getattr(output, "logits", output).shape
    targets = torch.randint(0, classes, (examples,))
    found = residual_map(model, *inputs, **named)
    called = [layer.path for layer in found.layers() if layer.kind == "weight" and layer.called]
    layers = {path for path in called if ":" not in path}
    watchers = (
        *(ChannelMoments(), GradientMoments(), LogitGradients(), LogitGradientMatrix()),
        *(ActivationHistograms(5), OutputGradientHistograms(5), ParameterGradientHistograms(5)),
    )
    observe(model, watchers, x, targets, residual_map=found)
    channels, gradients, by_class, *_ = tables = [watcher.table() for watcher in watchers]
    assert not any(table.empty for table in tables)
    assert set(channels["layer"]) == layers
    assert channels["order"].is_monotonic_increasing
    assert (channels["variance"] >= 0).all()
    assert len(gradients) == len(list(model.parameters()))
    assert len(by_class) == classes
    assert set(classwise_gradients(model, x, targets, residual_map=found)["class"]) == {*range(classes)}
    direction = steepest_descent(model, x, targets)
    assert loss_along(model, x, targets, direction, [1e-4])["loss"].notna().all()
    assert set(moments_along(model, x, targets, direction, [0.0], residual_map=found)["layer"]) == layers
    assert not find_divergence(model, [(x, targets)] * 2, 1e-3).diverged
    assert largest_stable_rate(model, [(x, targets)] * 2, start=1e-3, highest=2e-3).largest == 2e-3
