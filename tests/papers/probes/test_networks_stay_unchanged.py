"""Measurements leave the network, its gradients, its mode and the random state as they were, even if one fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normless import convert
from normless.models import resnet_cifar
from normless.probes import Loss, observe
from normless_papers import probes
from normless_papers.probes.class_gradients import classwise_elements
from normless_papers.probes.divergence import (
    find_divergence,
    largest_stable_rate,
    loss_along,
    moments_along,
    steepest_descent,
)
from normless_papers.probes.gamma_rate import gamma_updates
from normless_papers.probes.sgd_noise import noise_table
from normless_papers.probes.updates import function_update_table, update_trace_table
from normless_papers.theory.homogeneity import (
    InputGradientBounds,
    SetGradientBounds,
    homogeneous_sets,
    input_homogeneity,
)

Measurement = Callable[[nn.Module, Tensor, Tensor, Loss], Any]


def _along(model: nn.Module, x: Tensor, y: Tensor, loss: Loss) -> Any:
    direction = steepest_descent(model, x, y, loss=loss)
    moments_along(model, x, y, direction, [0.1], loss=loss)
    return loss_along(model, x, y, direction, [0.1, 1e30], loss=loss)


WATCHERS = (probes.GradientSums, probes.GradientCorrelation, InputGradientBounds, SetGradientBounds)
BY_LOSS: dict[str, Measurement] = {
    "classes": lambda model, x, y, loss: classwise_elements(model, x, y, "classifier.weight", loss=loss),
    "function update": lambda model, x, y, loss: function_update_table(model, x, y, steps=(1,), loss=loss),
    "gamma rate": lambda model, x, y, loss: gamma_updates(model, x, y, scales=(2.0,), loss=loss),
    "landscape": _along,
    "largest rate": lambda model, x, y, loss: largest_stable_rate(model, [(x, y)] * 2, loss=loss),
    "divergence": lambda model, x, y, loss: find_divergence(model, [(x, y)] * 3, 1e4, loss=loss),
    "noise": lambda model, x, y, loss: noise_table(model, x, y, loss, [(0.1, torch.tensor([[0, 1], [1, 2]]))]),
    "update terms": lambda model, x, y, loss: update_trace_table(model, x, y, loss=loss),
    "watchers": lambda model, x, y, loss: observe(model, [watcher() for watcher in WATCHERS], x, y, loss=loss),
}
OTHERS: dict[str, Measurement] = {
    "input homogeneity": lambda model, x, y, loss: input_homogeneity(model, x),
    "homogeneous sets": lambda model, x, y, loss: homogeneous_sets(model, x),
}


def _failing(*_: Tensor) -> Tensor:
    raise RuntimeError("the loss fails")


@pytest.mark.parametrize(
    ("name", "loss"),
    [*((name, loss) for name in BY_LOSS for loss in (F.cross_entropy, _failing)), *((name, None) for name in OTHERS)],
    ids=lambda value: value if isinstance(value, str) else "" if value is None else value.__name__,
)
def test_it_leaves_everything_as_it_was(name: str, loss: Loss | None) -> None:
    model = resnet_cifar(8)
    model = convert(model, "zeroinit(dropout=0.5)") if name == "divergence" else model
    model.eval().classifier.weight.grad = torch.ones_like(model.classifier.weight)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(4, 3, 8, 8, generator=generator), torch.arange(4)
    before, state = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    if loss is _failing:
        with pytest.raises(RuntimeError, match="the loss fails"):
            BY_LOSS[name](model, x, y, loss)
    else:
        (BY_LOSS | OTHERS)[name](model, x, y, loss or F.cross_entropy)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert [key for key, parameter in model.named_parameters() if parameter.grad is not None] == ["classifier.weight"]
    assert bool((model.classifier.weight.grad == 1).all())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
