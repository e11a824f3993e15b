"""Moments, histograms, logits, classes and landscapes of a network of another library and of one without a map."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normless.probes.hooks.observe import observe
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


class Attention(nn.Module):
    """A transformer block on tokens with a sum over them before the head, and keyword inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, *, tokens: Tensor) -> dict[str, Tensor]:
        x = self.embedding(tokens)
        x = x + self.attention(self.norm(x), x, x, need_weights=False)[0]
        x = x + self.second(torch.nn.functional.gelu(self.first(x)))
        return {"logits": self.head(x.mean(1))}


@pytest.fixture(params=["torchvision", "own"])
def network(request: pytest.FixtureRequest) -> tuple[nn.Module, object, Tensor]:
    if request.param == "own":
        return Attention(), {"tokens": torch.randint(0, 11, (4, 5))}, torch.randint(0, 3, (4,))
    torchvision = pytest.importorskip("torchvision")
    return torchvision.models.resnet18(num_classes=3), torch.randn(4, 3, 32, 32), torch.randint(0, 3, (4,))


def test_one_pass_measures_everything(network: tuple[nn.Module, object, Tensor]) -> None:
    model, x, targets = network
    given = (x,) if isinstance(x, Tensor) else ()
    named = x if isinstance(x, dict) else {}
    found = residual_map(model, *given, **named)
    weights = [layer for layer in found.layers() if layer.kind == "weight" and layer.called and ":" not in layer.path]
    watchers = (
        ChannelMoments(),
        GradientMoments(),
        ActivationHistograms(5),
        OutputGradientHistograms(5),
        ParameterGradientHistograms(5),
        LogitGradients(),
        LogitGradientMatrix(),
    )
    observe(model, watchers, x, targets, residual_map=found)
    channels, gradients, *_ = tables = [watcher.table() for watcher in watchers]
    assert not any(table.empty for table in tables)
    assert set(channels["layer"]) == {layer.path for layer in weights}
    assert channels["order"].is_monotonic_increasing
    assert len(gradients) == len(list(model.parameters()))
    assert (channels["variance"] >= 0).all()
    assert len(tables[5]) == 3
    assert set(classwise_gradients(model, x, targets, residual_map=found)["class"]) == {0, 1, 2}
    direction = steepest_descent(model, x, targets)
    assert loss_along(model, x, targets, direction, [1e-4])["loss"].notna().all()
    assert set(moments_along(model, x, targets, direction, [0.0], residual_map=found)["layer"]) == {
        layer.path for layer in weights
    }
    assert not find_divergence(model, [(x, targets)] * 2, 1e-3).diverged
    assert largest_stable_rate(model, [(x, targets)] * 2, start=1e-3, highest=2e-3).largest == 2e-3
