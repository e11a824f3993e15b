"""Figures 2 and 5, equation 1 and appendix C of SkipInit: carried out small, and checks that can fail."""

from __future__ import annotations

import math

import pytest
import torch
from papers_helpers import assert_whole, carried_out
from torch import nn

from normless import residual_map
from normless_papers.artefact import Context
from normless_papers.skipinit.appendix_c import MEAN_SQUARE, formulas
from normless_papers.skipinit.initialization import ConvolutionalNetwork


def test_the_printed_term_in_1_b_of_appendix_c_fails_at_small_batches(context: Context) -> None:
    """docs/probes.md has the same finding."""
    changes = {"batches": (8, 300), "width": 300, "blocks": 2}
    evidence = carried_out("skipinit/appendix-c-batch-statistics", context, **changes)
    merged = assert_whole("skipinit/appendix-c-batch-statistics", evidence)
    failed = [check.claim.partition(",")[0] for check in evidence.checks if check.verdict != "holds"]
    assert failed == ["Batch size 8: μ² with its term in 1/b is 0.4035 of l"]
    small = merged[(merged["batch"] == 8) & (merged["quantity"] == MEAN_SQUARE)].iloc[0]
    assert small["value_measured"] == pytest.approx(1 / math.pi + 0.18 / 8, rel=0.05)
    assert formulas(8)[0] == pytest.approx(0.4036, abs=1e-4)


def test_the_network_of_figure_2_c() -> None:
    network = ConvolutionalNetwork(3, width=8)
    found = residual_map(network)
    assert found.depth == 3
    assert network(torch.randn(2, 3, 16, 16)).shape == (2, 8, 4, 4)
    strides = [module.stride[0] for module in network.modules() if isinstance(module, nn.Conv2d)]
    assert strides == [2, 2, 1, 1, 1]
