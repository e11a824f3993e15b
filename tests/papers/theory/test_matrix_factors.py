"""Random matrices: the moments of their entries."""

from __future__ import annotations

import pytest

from normless_papers.theory.singular_values import Entries, random_factors


@pytest.mark.parametrize(("entries", "fourth"), [("gaussian", 3), ("uniform", 9 / 5), ("signs", 1)])
def test_entries_have_the_moments_they_are_named_for(entries: Entries, fourth: float) -> None:
    standardized = next(random_factors(400, entries=entries, gain="standard"))
    assert float(standardized.mean()) == pytest.approx(0, abs=0.01)
    assert float(standardized.square().mean()) == pytest.approx(1, abs=0.02)
    assert float(standardized.pow(4).mean()) == pytest.approx(fourth, abs=0.1)
