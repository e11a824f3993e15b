"""Gradients of the logits, against the closed form p - y of cross entropy, and of one class alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from normless.models import wide_resnet
from normless.probes import observe
from normless.probes._moments import LogitGradients, agreement
from normless.residual import Layer, ResidualMap
from normless_papers.probes import LogitGradientMatrix
from normless_papers.probes.class_gradients import for_each_class

ONE = ResidualMap((), stem_layers=(Layer("", "weight"),))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(2, 6), st.integers(0, 10**6))
def test_by_class_and_example_they_are_p_minus_y(examples: int, classes: int, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = nn.Linear(3, classes).double(), torch.randn(examples, 3, dtype=torch.float64)
    targets = torch.randint(0, classes, (examples,))
    by_class, matrix = LogitGradients(), LogitGradientMatrix()
    observe(model, [by_class, matrix], x, targets, residual_map=ONE)
    z = model(x).detach()
    g, table, classwise = (z.softmax(1) - F.one_hot(targets, classes)).numpy(), matrix.table(), by_class.table()
    np.testing.assert_allclose(table.pivot(index="example", columns="class", values="gradient"), g, atol=1e-9)
    np.testing.assert_allclose(table.pivot(index="example", columns="class", values="logit"), z.numpy())
    assert table[table["is_target"]]["class"].tolist() == targets.tolist()
    guesses = np.bincount(z.argmax(1).numpy(), minlength=classes) / examples
    expected = {
        "class": np.arange(classes),
        "mean_logit": z.mean(0).numpy(),
        "logit_deviation": z.numpy().std(0),
        "predicted_share": guesses,
        "target_share": np.bincount(targets.numpy(), minlength=classes) / examples,
        "mean_abs_gradient": np.abs(g).mean(0),
        "gradient_share": np.abs(g).sum(0) / np.abs(g).sum(),
        "bias_gradient": g.mean(0),
        "agreement": np.abs(g.sum(0)) / np.abs(g).sum(0),
    }
    assert [*classwise.columns] == [*expected, "favoured"]
    for name, numbers in expected.items():
        np.testing.assert_allclose(classwise[name], numbers, rtol=1e-6, atol=1e-6 if name == "agreement" else 1e-9)
    assert classwise["favoured"].sum() == 1
    assert guesses[classwise["favoured"].to_numpy()][0] == guesses.max()
    assert agreement(classwise) == pytest.approx(np.abs(g.sum(0)).sum() / np.abs(g).sum())


Gradients = dict[str, Tensor]


def by_each_class(model: nn.Module, x: Tensor, targets: Tensor, *parameters: str) -> dict[int, Gradients]:
    found: dict[int, Gradients] = {}
    for_each_class(model, x, targets, lambda index, _, gradients: found.update({index: gradients}), parameters)
    return found


def test_each_class_is_the_gradient_of_its_logits_alone() -> None:
    """The mean cross entropy's gradient with respect to z_bj is (p_bj - y_bj)/B."""
    model, x, targets = wide_resnet(10, 1), torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))
    found = by_each_class(model, x, targets, "blocks.0.conv1.weight")
    assert list(found) == list(range(10))
    for index, gradients in found.items():
        logits = model.train()(x)
        weight = (logits.softmax(1) - F.one_hot(targets, 10)).detach()[:, index] / 4
        parameter = model.get_parameter("blocks.0.conv1.weight")
        (expected,) = torch.autograd.grad((logits[:, index] * weight).sum(), [parameter])
        assert list(gradients) == ["blocks.0.conv1.weight"]
        torch.testing.assert_close(gradients["blocks.0.conv1.weight"], expected, rtol=1e-3, atol=1e-7)
