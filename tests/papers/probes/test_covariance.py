"""Covariance of examples, compared with explicit pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from measured import measured
from torch import Tensor

from normless.models import wide_resnet
from normless_papers.probes.stream import ExampleCovariance, covariance_of_examples


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_pairs_are_those_of_a_loop(batch: int, shape: list[int]) -> None:
    x = torch.randn(batch, *shape, dtype=torch.float64) + 0.5
    flat = x.flatten(1)
    whole = np.cov(flat.numpy(), bias=True).reshape(batch, batch) if flat.shape[1] > 1 else np.zeros((batch, batch))
    expected = np.diag(whole).mean(), whole[~np.eye(batch, dtype=bool)].mean()
    assert covariance_of_examples(x) == pytest.approx(expected, abs=1e-12)


def test_both_sides_of_a_sum() -> None:
    model, x = wide_resnet(10, 1), torch.randn(4, 3, 8, 8)
    table = measured(ExampleCovariance(), model, x)
    sides: list[tuple[Tensor, Tensor]] = []
    model.blocks[1].sum.register_forward_hook(lambda _, inputs, __: sides.append(inputs))
    with torch.no_grad():
        model.train()(x)
    skip, branch = (side.flatten(1).double().numpy() for side in sides[0])
    expected = np.mean([np.cov(left, other, bias=True)[0, 1] for left, other in zip(skip, branch, strict=True)])
    assert table["skip_branch_covariance"][1] == pytest.approx(expected, rel=1e-5)
