"""Draws of random matrices have the moments they say, and the same ones at every gain."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from normless_papers.theory.matrix_factors import Entries, gain_of, random_factors

ENTRIES: tuple[Entries, ...] = ("gaussian", "uniform", "signs")


@pytest.mark.parametrize("entries", ENTRIES)
def test_entries_have_the_moments_they_are_named_for(entries: Entries) -> None:
    standardized = next(random_factors(400, entries=entries, gain="standard"))
    fourth = {"gaussian": 3, "uniform": 9 / 5, "signs": 1}[entries]
    assert float(standardized.mean()) == pytest.approx(0, abs=0.01)
    assert float(standardized.square().mean()) == pytest.approx(1, abs=0.02)
    assert float(standardized.pow(4).mean()) == pytest.approx(fourth, abs=0.1)


@settings(deadline=None)
@given(st.integers(1, 30), st.floats(0.1, 10), st.sampled_from(ENTRIES))
def test_the_gain_scales_the_same_draws(size: int, gain: float, entries: Entries) -> None:
    plain, scaled = random_factors(size, entries=entries), random_factors(size, entries=entries, gain=gain)
    for _ in range(2):
        first, second = next(plain), next(scaled)
        assert first.shape == (size, size)
        torch.testing.assert_close(second, gain * first)


def test_gains_are_those_of_torch_initializations() -> None:
    layer = nn.Linear(500, 500)
    nn.init.xavier_normal_(layer.weight)
    assert float(layer.weight.detach().std()) * sqrt(500) == pytest.approx(gain_of("xavier", 500), rel=0.02)
    nn.init.kaiming_normal_(layer.weight)
    assert float(layer.weight.detach().std()) * sqrt(500) == pytest.approx(gain_of("he", 500), rel=0.02)


def test_seed_run_and_entries_tell_draws_apart() -> None:
    first = next(random_factors(20, seed=1, run=0))
    assert torch.equal(first, next(random_factors(20, seed=1, run=0)))
    for other in (random_factors(20, seed=2), random_factors(20, seed=1, run=1)):
        assert abs(float(torch.corrcoef(torch.stack([first.flatten(), next(other).flatten()]))[0, 1])) < 0.2
    signs = next(random_factors(20, seed=1, entries="signs"))
    assert abs(float(torch.corrcoef(torch.stack([first.flatten(), signs.flatten()]))[0, 1])) < 0.2


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="'gaussian', 'uniform', 'signs', got 'cauchy'"):
        random_factors(3, entries="cauchy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'xavier', 'he', 'standard' or a number, got 'lecun'"):
        random_factors(3, gain="lecun")
    with pytest.raises(ValueError, match="positive, finite gain"):
        random_factors(3, gain=0.0)
    with pytest.raises(ValueError, match="size 0"):
        random_factors(0)
