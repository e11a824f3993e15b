"""Dependence between the examples of a batch, on networks with known dependence."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from matrix.case import changed, state_of
from torch import Tensor, nn
from torch.nn import functional as F
from written_networks import Written

import normless as nl


def code(function: Callable[..., Any]) -> nn.Module:
    """A function as a module."""
    return Written(lambda _, *inputs, **named: function(*inputs, **named))


def mixup(x: Tensor) -> Tensor:
    share = float(np.random.beta(1.0, 1.0))  # noqa: NPY002
    return share * x + (1 - share) * x[torch.randperm(len(x))]


def attention_over_the_batch(x: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(x[None], x[None], x[None])[0]


def contrast(x: Tensor) -> Tensor:
    return x @ x.T


@pytest.mark.parametrize(
    ("function", "mixes"),
    [
        (lambda x: x - x.mean(0), True),
        (lambda x: x - x.mean(1, keepdim=True), False),
        (lambda x: x / x.abs().max(), True),
        (lambda x: x.clamp(max=x.max()) * x.min(), True),
        (lambda x: x + 1e-6 * x.mean(0), True),
        (lambda x: x.roll(1, 0), True),
        (lambda x: x + F.pad(x[2:3], (0, 0, 3, len(x) - 4)), True),
        (lambda x: x.argsort(0).float(), True),
        (lambda x: F.dropout(x, 0.5), False),
        (lambda x: x + random.random() + np.random.rand(), False),  # noqa: NPY002
        (lambda x: x.T, False),
        (lambda x: x.cumsum(0), True),
        (lambda x: torch.zeros_like(x), False),
        (mixup, True),
        (attention_over_the_batch, True),
        (contrast, True),
    ],
)
def test_forward_code(function: Callable[[Tensor], Tensor], mixes: bool) -> None:
    found = nl.mixes_examples(nn.Sequential(nn.Linear(7, 7), code(function)), torch.randn(5, 7))
    assert bool(found) is mixes
    assert [module.path for module in found.modules] == ["1"] * mixes


def test_a_multiplier_at_zero_does_not_hide_a_norm() -> None:
    def scaled(*, trained: bool) -> nn.Module:
        multiplier = nn.Parameter(torch.zeros(()), requires_grad=trained)
        return Written(lambda m, x: x + m.multiplier * m.norm(x), norm=nn.BatchNorm1d(5), multiplier=multiplier)

    inputs = torch.randn(4, 5)
    assert [module.path for module in nl.mixes_examples(scaled(trained=True), inputs).modules] == ["norm"]
    frozen = nl.mixes_examples(scaled(trained=False), inputs)
    assert not frozen
    assert frozen.state == ("norm",)


@pytest.mark.parametrize(("single", "said"), [(True, True), (False, False)])
def test_double_precision_separates_mixing_from_rounding(single: bool, said: bool) -> None:
    """The mean times 10⁻⁶ is mixing, and undecided for a network with fixed precision."""

    def faint(m: Written, x: Tensor) -> Tensor:
        y = m.linear(x.float() if single else x)
        return y + 1e-6 * y.mean(0)

    (culprit,) = nl.mixes_examples(Written(faint, linear=nn.Linear(5, 5)), torch.randn(4, 5)).modules
    assert culprit.path == ""
    assert ("may be rounding" in culprit.reason) is said


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(2, 9), data=st.data())
def test_every_pair_of_examples_is_covered(batch: int, data: st.DataObject) -> None:
    """One example depends on one other."""
    source = data.draw(st.integers(0, batch - 1))
    target = data.draw(st.integers(0, batch - 1))
    weights = torch.eye(batch)
    weights[target, source] = 1.0
    found = nl.mixes_examples(code(lambda x: weights @ x), torch.randn(batch, 3))
    assert bool(found) is (source != target)


def test_state_is_restored_after_errors_too() -> None:
    def failing(m: Any, x: Tensor, *, fail: bool) -> Tensor:
        m.passes += 1
        x.mul_(2)
        if fail:
            raise RuntimeError("as asked")
        return m.dropout(m.norm(x)) * random.random() * np.random.rand()  # type: ignore[no-any-return] # noqa: NPY002

    model: Any = Written(failing, norm=nn.BatchNorm1d(5), dropout=nn.Dropout())
    model.passes = 0
    model.dropout.eval()
    inputs = torch.randn(4, 5)
    original, before = inputs.clone(), state_of(model)
    assert nl.mixes_examples(model, inputs, fail=False)
    with pytest.raises(RuntimeError, match="as asked"):
        nl.mixes_examples(model, inputs, fail=True)
    assert torch.equal(inputs, original)
    assert changed(before, state_of(model)) == []
    assert model.passes == 0
