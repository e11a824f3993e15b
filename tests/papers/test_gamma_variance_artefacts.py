"""Artefacts about γ and the variance of the stream: their tables, and their checks of networks made to fail."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from papers_helpers import carried_out, check_of

from normless_papers.artefact import Context
from normless_papers.gamma import analysed_networks
from normless_papers.gamma.analysed_networks import averaged, beside_formula
from normless_papers.gamma.variance import _second_moment, _with_mean


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


def test_the_mean_that_equation_11_ignores_is_what_a_stream_that_is_not_negative_keeps() -> None:
    """E[ReLU(x + f)²] against a draw of f for every x; centred x, the look-alike, have the half of the text."""
    torch.manual_seed(0)
    gamma, centred = torch.tensor([0.3, 1.5]), torch.randn(2000, 2, 8, 8)
    f = gamma.view(1, 2, 1, 1) * torch.randn_like(centred)
    half = float(gamma.square().mean()) / 2
    for x, halves in ((centred, True), (centred.abs(), False)):
        drawn, formula = _second_moment(torch.relu(x + f)), (_second_moment(x) / 2 + half)
        assert _with_mean(x, gamma) == pytest.approx(drawn, rel=0.01)
        assert (formula == pytest.approx(drawn, rel=0.02)) == halves


def test_networks_whose_blocks_read_their_own_inputs_contradict_equations_10_and_11(context: Context) -> None:
    model = "normless:resnet(depth=34, channels=16)"
    evidence = carried_out("gamma/equation-11", context, model=model, side=64, examples=8, draws=3)
    assert check_of(evidence, "equation 10").verdict == "fails"
    assert check_of(evidence, "a quarter").numbers["measured"] > 0.5
    table = evidence.measured.set_index("quantity")
    assert table.loc["Var[x_{l+1}] with the mean", "ratio"].mean() == pytest.approx(1, abs=0.05)
    assert table.loc["Var[x_{l+1}]", "ratio"].mean() > 1.2
