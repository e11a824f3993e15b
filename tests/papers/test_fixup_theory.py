"""Fixup's equation, proposition, figure 2, theorems and design goal: carried out small, and checks that can fail."""

from __future__ import annotations

import pytest
import torch
from papers_helpers import assert_whole, carried_out, check_of

from normless_papers.artefact import Context
from normless_papers.claims import verdict_of
from normless_papers.fixup.updates import RectifiedNetwork, closed_form
from normless_papers.probes import update_terms


def test_equation_1(context: Context) -> None:
    evidence = carried_out("fixup/equation-1", context, blocks=6, draws=6)
    merged = assert_whole("fixup/equation-1", evidence)
    # So few draws of so few blocks need not tell every number from its bounds.
    assert {one.verdict for one in evidence.checks} <= {"holds", "inconclusive"}
    plain = merged[merged["scheme"] == "none"].set_index("block")["growth"]
    assert plain[6] == pytest.approx(64, rel=0.3)


def test_proposition_1(context: Context) -> None:
    evidence = carried_out("fixup/proposition-1", context)
    assert_whole("fixup/proposition-1", evidence)
    assert verdict_of(evidence.checks) == "holds"


def test_figure_2(context: Context) -> None:
    evidence = carried_out("fixup/figure-2", context)
    assert_whole("fixup/figure-2", evidence)
    assert verdict_of(evidence.checks) == "holds"
    assert check_of(evidence, "down-sampling").numbers["sets"] == 6


@pytest.mark.slow
def test_theorem_1(context: Context) -> None:
    evidence = carried_out("fixup/theorem-1", context, depth=20, draws=2)
    assert_whole("fixup/theorem-1", evidence)
    assert verdict_of(evidence.checks) == "holds"
    assert check_of(evidence, "without exception").numbers["cases"] > 50


@pytest.mark.slow
def test_theorem_2(context: Context) -> None:
    evidence = carried_out("fixup/theorem-2", context, draws=2, classifiers=60, depths=(8, 56))
    assert_whole("fixup/theorem-2", evidence)
    assert check_of(evidence, "(3)").numbers["cases"] > 10
    assert all(one.verdict == "holds" for one in evidence.checks[:2])


def test_theorem_3(context: Context) -> None:
    evidence = carried_out("fixup/theorem-3", context, depths=(8, 32), depth=8)
    assert_whole("fixup/theorem-3", evidence)
    assert verdict_of(evidence.checks) == "holds"


def test_theorem_4(context: Context) -> None:
    evidence = carried_out("fixup/theorem-4", context)
    assert_whole("fixup/theorem-4", evidence)
    assert verdict_of(evidence.checks) == "holds"


def test_the_closed_form_against_autograd() -> None:
    network = RectifiedNetwork(2, 5, 3).double()
    x = torch.randn(1, 5, dtype=torch.float64)
    formula = closed_form(network, x[0])
    for term in update_terms(network, x):
        assert torch.allclose(term.matrix, formula[term.parameter], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_design_goal(context: Context) -> None:
    evidence = carried_out("fixup/design-goal", context, depths=(2, 6), width=48, draws=2)
    merged = assert_whole("fixup/design-goal", evidence)
    assert check_of(evidence, "shortcut").verdict == "holds"
    assert (merged["update_per_rate"].dropna() > 0).all()
