"""SkipInit, its regularized and V1 forms, batch norm and the reference code: carried out small, and their checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from invented_runs import Optimum, invented
from papers_helpers import assert_whole, carried_out
from torch import nn

from normless import convert
from normless.models import resnet_v2
from normless_papers.artefact import Context, artefact_of
from normless_papers.skipinit.method import _algorithm
from normless_papers.skipinit.reference_code import appendix_g, expected_parameters


def test_scalar_bias() -> None:
    blocks, biases, agreements = _algorithm(32)
    assert biases == (1,) * blocks == (1,) * 16
    assert all(agreement.agrees for agreement in agreements)


@pytest.mark.slow
def test_scalar_bias_is_trained(context: Context) -> None:
    evidence = carried_out("skipinit/scalar-bias-v1", context)
    assert_whole("skipinit/scalar-bias-v1", evidence)
    assert {check.verdict for check in evidence.checks[:4]} == {"holds"}


def test_the_reference_code_has_its_multipliers_and_the_counted_parameters() -> None:
    network = convert(resnet_v2(50), "zeroinit(dropout=0)").double().eval()
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    start = appendix_g(network, x)
    torch.testing.assert_close(network(x), start)
    nn.init.ones_(network.get_submodule("blocks.4.conv3").get_parameter("multiplier"))
    assert not torch.allclose(appendix_g(network, x), start)
    assert expected_parameters() == sum(parameter.numel() for parameter in network.parameters())


def test_skipinit_has_the_runs_of_table_1(tmp_path: Path) -> None:
    for budget in ("smoke", "small", "paper"):
        mine, runs = (_asked(name, tmp_path, budget) for name in ("skipinit/skipinit", "skipinit/table-1"))
        assert mine < runs, budget


def _asked(name: str, folder: Path, budget: Any) -> set[str]:
    """Hashes of the runs that an artefact asks a laboratory for."""
    algorithm = {"depth": 10, "width": artefact_of(name).settings[budget]["width"]} if "table" not in name else {}
    _, laboratory = invented(name, lambda *_: Optimum(90.0), folder, budget, **algorithm)
    return {point.config.hash for point in laboratory.points}
