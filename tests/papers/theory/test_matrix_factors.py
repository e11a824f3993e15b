"""Draws of random matrices have the moments they say, and the same ones at every gain."""

from __future__ import annotations

import pytest
import torch

from normless_papers.theory.matrix_factors import Entries, random_factors

ENTRIES: tuple[Entries, ...] = ("gaussian", "uniform", "signs")


@pytest.mark.parametrize("entries", ENTRIES)
def test_entries_have_the_moments_they_are_named_for(entries: Entries) -> None:
    standardized = next(random_factors(400, entries=entries, gain="standard"))
    fourth = {"gaussian": 3, "uniform": 9 / 5, "signs": 1}[entries]
    assert float(standardized.mean()) == pytest.approx(0, abs=0.01)
    assert float(standardized.square().mean()) == pytest.approx(1, abs=0.02)
    assert float(standardized.pow(4).mean()) == pytest.approx(fourth, abs=0.1)


def test_seed_run_and_entries_tell_draws_apart() -> None:
    first = next(random_factors(20, seed=1, run=0))
    assert torch.equal(first, next(random_factors(20, seed=1, run=0)))
    for other in (random_factors(20, seed=2), random_factors(20, seed=1, run=1)):
        assert abs(float(torch.corrcoef(torch.stack([first.flatten(), next(other).flatten()]))[0, 1])) < 0.2
    signs = next(random_factors(20, seed=1, entries="signs"))
    assert abs(float(torch.corrcoef(torch.stack([first.flatten(), signs.flatten()]))[0, 1])) < 0.2
