"""Outcomes and the plateau rule against direct counting."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from normless.probes._divergence import has_diverged
from normless_lab.train._result import SIGNIFICANCE, chance_accuracy, finished_outcome, has_plateaued


@pytest.mark.parametrize(
    ("loss", "diverged"),
    [(0.0, False), (1e3, False), (1000.1, True), (math.inf, True), (-math.inf, True), (math.nan, True)],
)
def test_what_counts_as_diverged(loss: float, diverged: bool) -> None:
    assert has_diverged(loss) == diverged


def labels_with(most_common: int, size: int) -> torch.Tensor:
    """Labels of which `most_common` are class 2, and the others of classes that are rarer."""
    rest = torch.arange(size - most_common) % 97 + 3
    return torch.cat([torch.full((most_common,), 2), rest])


def test_chance_is_the_most_common_class() -> None:
    assert chance_accuracy(labels_with(40, 100)) == 0.4


def binomial_tail(right: int, size: int, share: float) -> float:
    terms = (math.comb(size, k) * share**k * (1 - share) ** (size - k) for k in range(right, size + 1))
    return math.fsum(terms)


@given(st.integers(20, 300), st.floats(0.1, 0.9), st.data())
def test_a_run_trained_where_the_binomial_tail_is_small(size: int, share: float, data: st.DataObject) -> None:
    labels = labels_with(max(math.ceil(share * size), size // 97 + 2), size)
    right = data.draw(st.integers(0, size))
    tail = binomial_tail(right, size, chance_accuracy(labels))
    level = SIGNIFICANCE if size >= 100 else 0.05
    if abs(tail - level) > 1e-9:
        assert finished_outcome(right / size, labels) == ("trained" if tail < level else "chance")


def test_a_good_network_on_a_few_examples_is_trained() -> None:
    """12 of 18 where a constant guess has 6: P = 0.004; 8 of 18: P = 0.22."""
    labels = torch.arange(18) % 3
    assert [finished_outcome(right / 18, labels) for right in (12, 8)] == ["trained", "chance"]


def test_plateau_by_hand() -> None:
    falling = [2.0 * 0.9**epoch for epoch in range(20)]
    assert [has_plateaued(losses) for losses in (falling, falling[:2], [1.0, 0.989])] == [False] * 3
    # It no longer falls, or by less than 1 %, or by less than 0.001 nats.
    flat = ([*falling, *[0.2] * 6], [2.0, 2.5], [1.0, 0.991], [1e-3, 1e-4])
    assert [has_plateaued(losses) for losses in flat] == [True] * 4
    assert has_plateaued([1.0]) is has_plateaued([]) is None
