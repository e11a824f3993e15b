"""Artefacts about γ and the variance of the stream: their tables, and their checks of networks made to fail."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from papers_helpers import carried_out, check_of

from normless_papers.artefact import Context
from normless_papers.gamma import analysed_networks
from normless_papers.gamma.analysed_networks import averaged, beside_formula


@pytest.mark.slow
def test_a_branch_that_does_not_end_in_its_norm_fails_equation_6(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last weights are drawn twice too large: the branch has four times γ_last²."""
    original = analysed_networks.analysed_network

    def too_large(model: str, batch: object) -> object:
        network, found = original(model, batch)  # type: ignore[arg-type]
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                if name.endswith("branch.linear2.weight"):
                    parameter.mul_(2)
        return network, found

    monkeypatch.setattr(analysed_networks, "analysed_network", too_large)
    evidence = carried_out("gamma/equation-6", context, draws=2)
    assert check_of(evidence, "branch's variance is γ_last²").verdict == "fails"
    assert check_of(evidence, "change no branch's variance").verdict == "holds"


def test_means_over_draws() -> None:
    rows = pd.DataFrame({"name": ["a", "b", "a", "b"], "draw": [0, 0, 1, 1], "place": [1.0, float("nan")] * 2})
    measured = pd.Series([1.0, 4.0, 3.0, 8.0])
    table = averaged(beside_formula("q", rows, measured, pd.Series([1.0, 2.0, 1.0, 2.0]), "place"))
    assert table["block"].tolist() == ["a", "b"]
    assert table["measured"].tolist() == [2.0, 6.0]
    assert table["ratio"].tolist() == [2.0, 3.0]
    assert table["deviation"].tolist() == pytest.approx([2**0.5, 2**0.5])
    assert table["n"].tolist() == [2, 2]
