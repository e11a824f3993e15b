"""Fixup's theorems 1 and 2: identities per example."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings, strategies as st
from measured import measured
from torch import nn

from normless import convert
from normless.models import dense
from normless_papers.theory.homogeneity import InputGradientBounds, SetGradientBounds


def excess(table: pd.DataFrame) -> pd.Series:
    return table["loss"] - table["entropy"]


def test_the_measured_numbers_are_those_of_one_example_alone() -> None:
    """Oracle: each example passed by itself, the gradient taken by hand at the second block's input."""
    network = convert(dense(3, 12, in_features=5, classes=4), "none").double()
    inputs, targets = torch.randn(6, 5).double(), torch.randint(4, (6,))
    table = measured(InputGradientBounds(), network, inputs, targets)
    for example in range(6):
        x = network.blocks[0](network.stem(inputs[example : example + 1])).detach().requires_grad_()
        z = network.classifier(network.blocks[2](network.blocks[1](x)))
        loss = F.cross_entropy(z, targets[example : example + 1])
        (gradient,) = torch.autograd.grad(loss, x)
        row = table[(table["block"] == 2) & (table["example"] == example)].iloc[0]
        assert row["name"] == "blocks.1"
        assert row["gradient_norm"] == pytest.approx(float(gradient.norm()))
        assert row["input_norm"] == pytest.approx(float(x.detach().norm()))
        assert row["inner_product"] == pytest.approx(float((gradient * x.detach()).sum()))
        assert row["loss"] == pytest.approx(loss.item())
        p = z.detach().softmax(1)
        assert row["entropy"] == pytest.approx(float(-(p * p.log()).sum()))
        assert row["bound"] == pytest.approx((row["loss"] - row["entropy"]) / row["input_norm"])


@settings(max_examples=15, deadline=None)
@given(
    depth=st.integers(1, 4),
    width=st.integers(1, 9),
    classes=st.integers(2, 5),
    size=st.integers(1, 5),
    layers=st.integers(1, 3),
    soft=st.booleans(),
)
def test_the_identity_holds_for_every_shape(
    depth: int, width: int, classes: int, size: int, layers: int, soft: bool
) -> None:
    torch.manual_seed(depth + 10 * width)
    network = convert(dense(depth, width, classes, 3, branch_layers=layers), "none").double()
    nn.init.zeros_(network.classifier.bias)
    targets = torch.rand(size, classes).double().softmax(1) if soft else torch.randint(classes, (size,))
    inputs = torch.randn(size, 3).double()
    table = measured(InputGradientBounds(), network, inputs, targets)
    assert len(table) == (depth + 1) * size
    assert ((table["inner_product"] - excess(table)).abs() < 1e-8).all()
    sets = measured(SetGradientBounds(), network, inputs, targets)
    assert ((sets["inner_product"] - sets["excess"]).abs() < 1e-8).all()
