"""Gradients of the logits, against the closed form p - y of cross entropy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normless.probes import probe
from normless.probes.hooks.observe import observe
from normless.probes.moments import LogitGradients, agreement
from normless.residual import Layer, ResidualMap
from normless_papers.probes import LogitGradientMatrix

COLUMNS = (
    *("class", "mean_logit", "logit_deviation", "predicted_share", "target_share"),
    *("mean_abs_gradient", "gradient_share", "bias_gradient", "agreement", "favoured"),
)
ONE = ResidualMap((), stem_layers=(Layer("", "weight"),))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(2, 6), st.integers(0, 10**6))
def test_by_class_and_example_they_are_p_minus_y(examples: int, classes: int, seed: int) -> None:
    torch.manual_seed(seed)
    model, x = nn.Linear(3, classes).double(), torch.randn(examples, 3, dtype=torch.float64)
    targets = torch.randint(0, classes, (examples,))
    by_class, matrix = LogitGradients(), LogitGradientMatrix()
    observe(model, [by_class, matrix], x, targets, residual_map=ONE)
    with torch.no_grad():
        z = model(x)
    g = (z.softmax(1) - F.one_hot(targets, classes)).numpy()
    table = matrix.table()
    np.testing.assert_allclose(table.pivot(index="example", columns="class", values="gradient"), g, atol=1e-9)
    np.testing.assert_allclose(table.pivot(index="example", columns="class", values="logit"), z.numpy())
    assert table[table["is_target"]]["class"].tolist() == targets.tolist()
    classwise = by_class.table()
    assert tuple(classwise.columns) == COLUMNS
    np.testing.assert_allclose(classwise["mean_logit"], z.mean(0).numpy())
    np.testing.assert_allclose(classwise["logit_deviation"], z.numpy().std(0), atol=1e-9)
    np.testing.assert_allclose(classwise["bias_gradient"], g.mean(0), atol=1e-9)
    np.testing.assert_allclose(classwise["mean_abs_gradient"], np.abs(g).mean(0), atol=1e-9)
    np.testing.assert_allclose(classwise["gradient_share"], np.abs(g).sum(0) / np.abs(g).sum(), atol=1e-9)
    np.testing.assert_allclose(classwise["agreement"], np.abs(g.sum(0)) / np.abs(g).sum(0), atol=1e-6)
    guesses = np.bincount(z.argmax(1).numpy(), minlength=classes) / examples
    np.testing.assert_allclose(classwise["predicted_share"], guesses, rtol=1e-6)
    np.testing.assert_allclose(classwise["target_share"], np.bincount(targets.numpy(), minlength=classes) / examples)
    assert classwise["favoured"].sum() == 1
    assert guesses[classwise["favoured"].to_numpy()][0] == guesses.max()
    assert agreement(classwise) == pytest.approx(np.abs(g.sum(0)).sum() / np.abs(g).sum())


def test_tokens_and_pixels_count_as_examples() -> None:
    x, targets = torch.randn(2, 5, 3), torch.randint(0, 4, (2, 5))

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    tokens = probe(nn.Linear(3, 4), (x, targets), ["logit_matrix"], loss=loss, residual_map=ONE).logit_matrix
    assert len(tokens) == 2 * 5 * 4
    assert tokens[tokens["is_target"]]["class"].tolist() == targets.flatten().tolist()
    assert tokens.groupby("example")["gradient"].sum().abs().max() < 1e-5
    images, labels = torch.randn(2, 3, 4, 4), torch.randint(0, 6, (2, 4, 4))
    pixels = probe(
        nn.Conv2d(3, 6, 1), (images, labels), ["logit_matrix(class_axis=1)"], residual_map=ONE
    ).logit_matrix
    assert len(pixels) == 2 * 16 * 6
    assert pixels[pixels["is_target"]]["class"].tolist() == labels.flatten().tolist()
    assert pixels.groupby("example")["gradient"].sum().abs().max() < 1e-5
