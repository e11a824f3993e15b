"""The figures and tables over batch sizes in worlds as the papers tell them, and in others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented_runs import Optimum, invented
from papers_helpers import check_of
from worlds.de_smith_batches import as_said, cifar100

from normless_lab.sweeps import RateGrid
from normless_papers.experiments.comparison import ordered
from normless_papers.experiments.de_smith import rates_at
from normless_papers.experiments.effort import Effort


def test_an_optimum_at_an_end_of_the_grid_is_no_optimum(tmp_path: Path) -> None:
    def beyond(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(90.0 if metric == "test_accuracy" else 0.2, exponent=30)

    for figure in ("zeroinit/figure-2", "zeroinit/figure-4", "skipinit/figure-6"):
        evidence, _ = invented(figure, beyond, tmp_path, batch_sizes=(4, 16, 64))
        assert {check.verdict for check in evidence.checks} == {"inconclusive"}, figure
    evidence, _ = invented("skipinit/figure-4", beyond, tmp_path, batch_sizes=(4, 16, 64))
    assert check_of(evidence, "No optimum by test accuracy lies at an end").verdict == "fails"


@pytest.mark.parametrize(("gap", "verdict"), [(1.0, "fails"), (0.01, "inconclusive")])
def test_a_peak_off_16_fails_where_it_is_told_from_16(gap: float, verdict: str, tmp_path: Path) -> None:
    def best_at_64(metric: str, labels: Mapping[str, str]) -> Optimum:
        size = math.log2(int(labels["batch_size"]))
        return Optimum(95.0 - gap * abs(size - 6), -5, 0.2) if metric == "test_accuracy" else Optimum(0.2, -5)

    evidence, _ = invented("skipinit/figure-8", best_at_64, tmp_path, batch_sizes=(4, 16, 64, 256))
    assert check_of(evidence, "is highest at batch size 16").verdict == verdict


def test_ghost_batches_have_32_examples_of_cifar100(tmp_path: Path) -> None:
    _, laboratory = invented("skipinit/figure-7", cifar100, tmp_path, batch_sizes=(16, 32, 64))
    configs = [point.config.to_dict() for point in laboratory.points]
    assert {config["batch_size"] for config in configs if config["ghost_batch_size"] == 32} == {64}
    assert {config["data"] for config in configs} == {"cifar100"}


def test_unnormalized_runs_are_shared_between_figures(tmp_path: Path) -> None:
    _, ghost = invented("zeroinit/figure-1", as_said, tmp_path, batch_sizes=(16, 64, 128))
    _, whole = invented("zeroinit/figure-3", as_said, tmp_path, batch_sizes=(16, 64, 128))
    _, skipinit = invented("skipinit/figure-4", as_said, tmp_path, batch_sizes=(16, 64, 128))

    def hashes(laboratory: object, scheme: str) -> set[str]:
        points = laboratory.points  # type: ignore[attr-defined]
        return {point.config.hash for point in points if point.config.to_dict()["scheme"].partition("(")[0] == scheme}

    assert hashes(ghost, "none") & hashes(whole, "none")
    # Batches of at most 64 have no ghosts.
    assert hashes(ghost, "batch_norm") & hashes(whole, "batch_norm")
    assert hashes(skipinit, "zeroinit") == hashes(whole, "zeroinit")
    assert hashes(skipinit, "batch_norm") == hashes(whole, "batch_norm")


def test_numbers_on_imagenet_are_asked_of_imagenet_alone(tmp_path: Path) -> None:
    evidence, laboratory = invented(
        "zeroinit/table-4", lambda metric, labels: Optimum(80.0), tmp_path, budget="smoke"
    )
    (check,) = [
        check for check in evidence.checks if check.claim.startswith("batch_norm at batch size 64 is less than 1")
    ]
    assert check.verdict == "inconclusive"
    assert "Not asked of a smaller set-up" in check.claim
    models = {point.config.to_dict()["model"] for point in laboratory.points}
    assert models == {"normless:resnet_v2(depth=50, initialization=he_fan_in_truncated, channels=8)"}


@given(
    st.lists(st.integers(-9, 3), min_size=2, max_size=8, unique=True).map(sorted),
    st.integers(0, 13),
)
def test_rates_reach_from_the_optimum_at_64_to_that_of_the_batch(exponents: list[int], power: int) -> None:
    rates = RateGrid(tuple(2.0**exponent for exponent in exponents), 2.0)
    grid = rates_at(Effort(data="cifar10", rates=rates), 2**power)
    held = [math.log2(rate) for rate in grid.rates]
    assert held == sorted(set(held))
    moved = {exponent + power - 6 for exponent in exponents}
    between = range(max(exponents), min(moved))
    assert moved <= set(held) <= moved | set(exponents) | set(between)
    assert power < 6 or set(exponents) <= set(held)


@pytest.mark.parametrize(
    ("first", "other", "factor", "holds"),
    [
        # log₂ of the optimum, of the lowest and of the highest rate within a deviation of it.
        ((2, 1, 3), (-1, -2, 0), 1, True),
        ((2, 0, 3), (-1, -2, 0), 1, None),
        ((-1, -2, 0), (2, 1, 3), 1, False),
        ((-1, -2, 1), (2, 1, 3), 1, None),
        ((2, 2, 2), (2, 2, 2), 1, None),
        ((math.nan, 0, 0), (2, 1, 3), 1, None),
        ((3, 3, 3), (1, 1, 1), 4, True),
        ((2, 2, 2), (1, 1, 1), 4, False),
        ((2, 2, 3), (1, 1, 1), 4, None),
    ],
)
def test_one_best_rate_is_above_another_only_where_their_ranges_do_not_overlap(
    first: tuple[float, float, float], other: tuple[float, float, float], factor: float, holds: bool | None
) -> None:
    assert ordered(first[0], first[1:], other[0], other[1:], factor) is holds
