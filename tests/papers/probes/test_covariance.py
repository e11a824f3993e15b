"""Covariance of examples, compared with explicit pairs, closed forms and predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import normless as nl
from normless.models import dense, wide_resnet
from normless.probes.hooks.observe import observe
from normless.probes.hooks.watcher import Watcher
from normless.residual import ResidualBlock
from normless_papers.probes.covariance import ExampleCovariance, covariance_of_examples


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_pairs_are_those_of_a_loop(batch: int, shape: list[int]) -> None:
    x = torch.randn(batch, *shape, dtype=torch.float64) + 0.5
    variance, covariance = covariance_of_examples(x)
    flat = x.flatten(1)
    whole = np.cov(flat.numpy(), bias=True).reshape(batch, batch) if flat.shape[1] > 1 else np.zeros((batch, batch))
    assert variance == pytest.approx(float(np.diag(whole).mean()), abs=1e-12)
    assert covariance == pytest.approx(float(whole[~np.eye(batch, dtype=bool)].mean()), abs=1e-12)


def test_predicted_and_measured_correlation_of_an_unnormalized_network_grow_alike() -> None:
    tables = []
    for seed in range(3):
        torch.manual_seed(seed)
        tables.append(
            nl.probe(
                nl.convert(dense(12, 500, in_features=500), "none"), torch.randn(200, 500), ["covariance"]
            ).covariance
        )
    measured = np.mean([table["sum_correlation"] for table in tables], axis=0)
    predicted = np.mean([table["predicted_sum_correlation"] for table in tables], axis=0)
    assert np.all(np.diff(measured) > 0)
    assert np.allclose(measured, predicted, atol=0.03)


def test_both_sides_of_a_sum() -> None:
    model = wide_resnet(10, 1)
    x = torch.randn(4, 3, 8, 8)
    watcher = ExampleCovariance()
    observe(model, [watcher], x)
    sides: list[tuple[Tensor, Tensor]] = []
    model.blocks[1].sum.register_forward_hook(lambda _, inputs, __: sides.append(inputs))
    with torch.no_grad():
        model.train()(x)
    skip, branch = (side.flatten(1).double().numpy() for side in sides[0])
    expected = np.mean([np.cov(left, other, bias=True)[0, 1] for left, other in zip(skip, branch, strict=True)])
    assert watcher.table()["skip_branch_covariance"][1] == pytest.approx(expected, rel=1e-5)


class ChannelPairs(Watcher):
    """Stores a few channels of a few examples on every skip path, for averages over draws."""

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        self.__dict__.setdefault("skips", []).append(skip[:4, :6].double().clone())
        self.__dict__.setdefault("branches", []).append(branches[0][:4, :6].double().clone())


def draws(count: int = 400, depth: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Skip paths and branches, shape (draws, blocks, examples, channels), of small networks, a batch each."""
    skips, branches = [], []
    found = nl.residual_map(dense(depth, 100))
    for _ in range(count):
        watcher = ChannelPairs()
        observe(dense(depth, 100), [watcher], torch.randn(64, 100), residual_map=found)
        skips.append(torch.stack(watcher.__dict__["skips"]))
        branches.append(torch.stack(watcher.__dict__["branches"]))
    return torch.stack(skips).numpy(), torch.stack(branches).numpy()
