"""Covariance of examples, compared with explicit pairs, closed forms and predictions."""

from __future__ import annotations

from math import pi

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

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


def test_one_example_has_no_pair() -> None:
    variance, covariance = covariance_of_examples(torch.randn(1, 5))
    assert variance > 0
    assert np.isnan(covariance)


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
    expected = np.mean([np.cov(one, other, bias=True)[0, 1] for one, other in zip(skip, branch, strict=True)])
    assert watcher.table()["skip_branch_covariance"][1] == pytest.approx(expected, rel=1e-5)


def test_a_network_without_blocks_has_no_rows_and_is_reported() -> None:
    measured = nl.probe(nn.Linear(3, 3), torch.ones(2, 3), ["covariance"])
    assert measured.covariance.empty
    assert [item.reason for item in measured.missed] == ["it has no residual block"]


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


def test_skipinit_equation_1_and_appendix_c_covariance() -> None:
    """skipinit/equation-1, skipinit/appendix-c-covariance: averaged over weight draws.

    Claim: Var(Xˡ) = l, two examples have covariance l/π on the same channel and none on different channels, and
    branch and skip path have none; equation 1 is l = 1. 400 draws of 6 channels and 4 examples, width 100, batch 64:
    a mean of products strays by about l/√2400. At batch 64 the ReLU's examples are slightly less alike: see
    `test_skipinit_appendix_c_batch_statistics…`.
    """
    skips, branches = draws()
    for block in range(3):
        x, f, level = skips[:, block], branches[:, block], block + 1
        assert np.mean(x) == pytest.approx(0, abs=0.05 * level)
        assert np.mean(x**2) == pytest.approx(level, rel=0.08)
        same = np.einsum("djc,dkc->jk", x, x) / (len(x) * 6)
        assert np.mean(same[~np.eye(4, dtype=bool)]) / level == pytest.approx(1 / pi, abs=0.04)
        channels = np.einsum("djc,djl->cl", x, x) / (len(x) * 4)
        assert np.abs(channels[~np.eye(6, dtype=bool)]).max() < 0.15 * level
        assert np.mean(x * f) == pytest.approx(0, abs=0.05 * level)
        assert np.mean(f**2) == pytest.approx(1, rel=0.08)


def test_skipinit_appendix_c_covariance_on_one_draw_at_every_depth() -> None:
    """skipinit/appendix-c-covariance: correlation 1/π and covariance l/π at every depth, over one draw's channels."""
    table = nl.probe(dense(30, 1000), torch.randn(300, 100), ["covariance"]).covariance
    assert np.allclose(table["skip_correlation"], 1 / pi, atol=0.05)
    assert np.allclose(table["branch_correlation"], 1 / pi, atol=0.06)
    assert np.allclose(table["skip_covariance"] / table["block"], 1 / pi, atol=0.05)
    assert np.abs(table["skip_branch_correlation"]).max() < 0.1
    assert np.allclose(table["predicted_skip_correlation"], table["skip_correlation"], atol=0.01)


def test_skipinit_appendix_c_batch_statistics_at_large_and_small_batches() -> None:
    """skipinit/appendix-c-batch-statistics: mean² l(1/π + (π-1)/(πb)), variance l(1-1/π)(1-1/b); they add up to l.

    Their limit holds at b = 512 and the sum at every b. The terms in 1/b do not: the paper takes the examples behind
    a batch norm for independent, but their mean is zero and their variance one by construction, which makes the
    squared mean smaller. At b = 8 it is 0.342 l (measured here, means of ten draws) where the paper has 0.404 l; with
    E[B_j B_k] = -1/(b-1) it is 1/π + 0.18/b to first order.
    """
    measured, predicted = {}, {}
    for batch in (8, 512):
        tables = [
            nl.probe(dense(4, 600, in_features=600), torch.randn(batch, 600), ["signal"]).signal for _ in range(10)
        ]
        names = ["norm_mean_square", "norm_variance", "predicted_norm_mean_square", "predicted_norm_variance"]
        scaled = np.mean([table[names].div(table["block"], axis=0).to_numpy() for table in tables], axis=0).mean(0)
        measured[batch], predicted[batch] = scaled[:2], scaled[2:]
        paper = [1 / pi + (pi - 1) / (pi * batch), (1 - 1 / pi) * (1 - 1 / batch)]
        assert predicted[batch] == pytest.approx(paper, abs=0.01)
        assert measured[batch].sum() == pytest.approx(1, abs=0.02)
    assert measured[512] == pytest.approx([1 / pi, 1 - 1 / pi], abs=0.01)
    assert measured[8][0] == pytest.approx(1 / pi + 0.18 / 8, abs=0.012)
    assert predicted[8][0] - measured[8][0] > 0.04
