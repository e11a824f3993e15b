"""The analytic artefacts of Understanding BN: random matrices, linear networks, the noise of a step."""

from __future__ import annotations

import pytest
from papers_helpers import assert_finite, assert_whole, carried_out

from normless_papers.artefact import Context, artefact_of
from normless_papers.understanding_bn.linear_networks import exponent_at_zero

SMALLER = {
    "theorem-1": {"size": 120, "runs": 2},
    "figure-8": {"size": 120, "factors": (1, 2), "runs": 3},
    "figure-9": {"points": 400},
    "figure-10": {"points": 2000},
    "figure-11": {},
    "figure-12": {},
    "scale-and-distribution-do-not-matter": {"size": 60, "factors": (1, 3), "runs": 3},
    "proposition-1": {"width": 5, "draws": 2, "conditions": (1.5, 3.0, 10.0)},
    "equation-2": {"draws": 20, "examples": 8},
}


@pytest.mark.parametrize("name", SMALLER)
def test_artefact(name: str, context: Context) -> None:
    evidence = carried_out(f"understanding-bn/{name}", context, **SMALLER[name])
    assert_whole(f"understanding-bn/{name}", evidence)
    for one in evidence.checks:
        assert_finite(one.numbers.values())
    assert [one.claim for one in evidence.checks if one.verdict != "holds"] == []


def test_the_exponent_is_that_of_the_theorem_and_not_of_singular_values() -> None:
    for factors in (1, 2, 5):
        assert exponent_at_zero(factors) == pytest.approx(-factors / (factors + 1), abs=1e-6)
        assert exponent_at_zero(factors) != pytest.approx(-(factors - 1) / (factors + 1), abs=0.1)


def test_paper_budgets_are_the_published_setups() -> None:
    for name in ("theorem-1", "figure-8", "figure-11", "figure-12"):
        settings = artefact_of(f"understanding-bn/{name}").settings["paper"]
        assert (settings["size"], settings["runs"]) == (1000, 5)
    for name in SMALLER:
        assert artefact_of(f"understanding-bn/{name}").settings.keys() >= {"smoke", "small", "paper"}
