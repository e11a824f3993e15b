"""Functions around one watcher, replaced by `normless.probe`: the former names measure the same, with a warning."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
import torch
from measured import measured

import normless.probes
import normless_papers.probes
import normless_papers.theory
from normless.models import resnet_cifar
from normless.probes import Watcher
from normless_papers.probes import ActivationHistograms, GradientSums, ParameterGradientHistograms
from normless_papers.theory import InputGradientBounds, SetGradientBounds

LAYERS, WEIGHTS = ["blocks.0.conv2"], ["blocks.0.conv1.weight"]


@pytest.mark.parametrize(
    ("package", "name", "arguments", "watcher", "training"),
    [
        (normless_papers.probes, "activation_histograms", (LAYERS, [1]), ActivationHistograms(60, LAYERS, [1]), True),
        (normless_papers.probes, "gradient_histograms", (WEIGHTS,), ParameterGradientHistograms(60, WEIGHTS), False),
        (normless.probes, "gradient_sum_table", (LAYERS,), GradientSums(LAYERS), True),
        (normless_papers.theory, "input_bound_table", (None,), InputGradientBounds(), True),
        (normless_papers.theory, "set_bound_table", (), SetGradientBounds(), False),
    ],
)
def test_a_former_function_gives_the_watchers_table(
    package: ModuleType, name: str, arguments: tuple[Any, ...], watcher: Watcher, training: bool
) -> None:
    model, x, targets = resnet_cifar(8), torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    batch = (x,) if name == "activation_histograms" else (x, targets)
    with pytest.warns(DeprecationWarning, match=name):
        function = getattr(package, name)
    table = function(model, *batch, *arguments, training=training)
    pd.testing.assert_frame_equal(table, measured(watcher, model, *batch, training=training))


@pytest.mark.parametrize("package", [normless_papers.probes, normless_papers.theory])
def test_no_public_name_is_hidden_by_a_module(package: ModuleType) -> None:
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    assert [name for name in package.__all__ if isinstance(getattr(package, name), ModuleType)] == []
