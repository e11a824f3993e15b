"""Figures 2 and 5, equation 1 and appendix C of SkipInit: carried out small, and checks that can fail."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from papers_helpers import assert_finite, assert_whole, carried_out, check_of
from torch import nn

from normless import residual_map
from normless.papers.artefact import Context
from normless.papers.skipinit.covariances import matches, mean_and_error
from normless.papers.skipinit.initialization import slope_through_zero
from normless.papers.skipinit.networks import ConvolutionalNetwork
from normless.papers.verdict import verdict_of


def test_figure_2(context: Context) -> None:
    evidence = carried_out("skipinit/figure-2", context, blocks=16)
    merged = assert_whole("skipinit/figure-2", evidence)
    assert verdict_of(evidence.checks) == "holds"
    assert set(merged["network"]) == {"a", "b", "c"}
    assert_finite(merged["skip_variance"])
    assert_finite(merged["predicted_skip_variance"])


def test_figure_5(context: Context) -> None:
    evidence = carried_out("skipinit/figure-5", context)
    merged = assert_whole("skipinit/figure-5", evidence)
    assert verdict_of(evidence.checks) == "holds"
    skip = merged[merged["quantity"] == "skip_variance"]
    assert skip["value_measured"].to_numpy(float) == pytest.approx(skip["law"].to_numpy(float), rel=0.15)


def test_equation_1(context: Context) -> None:
    evidence = carried_out("skipinit/equation-1", context, draws=100)
    assert_whole("skipinit/equation-1", evidence)
    assert verdict_of(evidence.checks) == "holds"


def test_appendix_c_covariance(context: Context) -> None:
    evidence = carried_out("skipinit/appendix-c-covariance", context, blocks=2, draws=100, deep=8)
    merged = assert_whole("skipinit/appendix-c-covariance", evidence)
    assert verdict_of(evidence.checks) == "holds"
    assert len(merged) == 2 * 3 * 3


def test_appendix_c_batch_statistics_fails_at_small_batches_only(context: Context) -> None:
    """The paper's terms in 1/b: docs/probes.md has the same finding."""
    evidence = carried_out("skipinit/appendix-c-batch-statistics", context)
    assert_whole("skipinit/appendix-c-batch-statistics", evidence)
    assert verdict_of(evidence.checks) == "fails"
    assert check_of(evidence, "Batch size 8: the squared mean").verdict == "fails"
    assert all(one.verdict == "holds" for one in evidence.checks if "Batch size 500" in one.claim)
    assert all(one.verdict == "holds" for one in evidence.checks if "add up" in one.claim)


def test_standard_errors_and_slopes() -> None:
    values = np.random.default_rng(0).normal(2.0, 0.5, 400)
    mean, error = mean_and_error(values)
    assert error == pytest.approx(0.025, rel=0.1)
    assert matches("So", (mean, error), 2.0).verdict == "holds"
    assert matches("So", (mean, error), 2.2).verdict == "fails"
    assert slope_through_zero(pd.Series([1, 2, 3]), pd.Series([2.0, 4.0, 6.0])) == pytest.approx(2)


def test_the_network_of_figure_2_c() -> None:
    network = ConvolutionalNetwork(3, width=8)
    found = residual_map(network)
    assert found.depth == 3
    assert network(torch.randn(2, 3, 16, 16)).shape == (2, 8, 4, 4)
    strides = [one.stride[0] for one in network.modules() if isinstance(one, nn.Conv2d)]
    assert strides == [2, 2, 1, 1, 1]
