"""The figures and tables over batch sizes in worlds as the papers tell them, and in others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invented_runs import Optimum, invented
from papers_helpers import assert_whole, check_of

from normless.papers.imagenet import BUDGETS
from normless.papers.protocol import METHODS, Effort
from normless.papers.published import published_as
from normless.papers.verdict import verdict_of

IMAGENET = ("zeroinit/table-4", "zeroinit/table-5", "skipinit/table-7")
FIGURES = (
    "zeroinit/figure-1",
    "zeroinit/figure-2",
    "zeroinit/batch-size-range",
    "zeroinit/figure-3",
    "zeroinit/figure-4",
)
SKIPINITS = (
    "skipinit/figure-4",
    "skipinit/figure-6",
    "skipinit/figure-7",
    "skipinit/figure-8",
    "skipinit/ghost-batch-size",
)
SATURATION = {"none": -3, "skipinit": 1, "zeroinit": 1, "batch_norm": 4}
CRITICAL = {"none": 6, "skipinit": 8, "zeroinit": 8, "batch_norm": 12}


SOME_SIZES = (4, 8, 16, 64, 256, 2048, 8192)


def scheme_of(labels: Mapping[str, str]) -> str:
    return str(METHODS[labels["method"]]["scheme"])


def as_told(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Rates proportional to the batch size up to saturation, accuracies that fall beyond a critical batch size."""
    scheme, size = scheme_of(labels), math.log2(int(labels["batch_size"]))
    rate = min(round(size - 7), SATURATION[scheme])
    beyond = max(0.0, size - CRITICAL[scheme])
    if metric == "test_accuracy":
        best = {"none": 92.3, "skipinit": 94.0, "zeroinit": 94.45, "batch_norm": 94.5}[scheme]
        return Optimum(best - 1.0 * beyond, rate, deviation=0.2)
    best = {"none": 0.212, "skipinit": 0.19, "zeroinit": 0.19, "batch_norm": 0.17}[scheme]
    return Optimum(best + 0.03 * beyond, rate, deviation=0.0005)


def best_at_16(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Whole-batch statistics: batch norm is best at 16; the others as told."""
    told = as_told(metric, labels)
    if labels["method"] != "batch_norm" or metric != "test_accuracy":
        return told
    return Optimum(95.0 - 0.4 * abs(math.log2(int(labels["batch_size"])) - 4), told.exponent, deviation=0.05)


@pytest.mark.parametrize("figure", ["zeroinit/figure-1", "zeroinit/figure-2", "zeroinit/batch-size-range"])
def test_a_world_as_the_zeroinit_paper_tells_it(figure: str, tmp_path: Path) -> None:
    evidence, _ = invented(figure, as_told, tmp_path, batch_sizes=SOME_SIZES)
    assert verdict_of(evidence.checks) == "holds", [one for one in evidence.checks if one.verdict != "holds"]
    merged = assert_whole(figure, evidence)
    if figure == "zeroinit/figure-2":
        assert merged["value_measured"].iloc[0] == "without_batch_norm -3, zeroinit 1, batch_norm 4"
        assert merged["value_published"].iloc[0] == merged["value_measured"].iloc[0]


@pytest.mark.slow
def test_a_world_where_the_methods_are_alike(tmp_path: Path) -> None:
    def alike(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(90.0, -3, 0.1) if metric == "test_accuracy" else Optimum(0.2, -3, 0.001)

    for figure in FIGURES:
        evidence, _ = invented(figure, alike, tmp_path, batch_sizes=(4, 16, 64, 512))
        # Equal means are told from none: where the claim is about accuracies alone, nothing is decided.
        assert verdict_of(evidence.checks) == ("inconclusive" if figure == "zeroinit/figure-3" else "fails"), figure
    evidence, _ = invented("zeroinit/figure-2", alike, tmp_path, batch_sizes=(4, 16, 64))
    assert check_of(evidence, "By test accuracy the optimal learning rate of zeroinit is prop").numbers["slope"] == 0


def test_batch_norm_ahead_at_every_batch_size_contradicts_figure_3(tmp_path: Path) -> None:
    evidence, _ = invented("zeroinit/figure-3", as_told, tmp_path, batch_sizes=(4, 16, 64, 1024))
    assert check_of(evidence, "(a) ZeroInit is above batch norm at batch size 4").verdict != "holds"
    assert check_of(evidence, "(a) Batch norm is above ZeroInit at batch size 1024").verdict == "holds"
    assert check_of(evidence, "(b) ZeroInit's loss is above batch norm's at batch size 64").verdict == "holds"
    assert check_of(evidence, "lie within one standard deviation").verdict == "holds"
    assert check_of(evidence, "(a) Batch norm's accuracy at batch size 4 is below").verdict != "holds"


def test_the_optimum_of_whole_batches(tmp_path: Path) -> None:
    for figure in ("skipinit/figure-8", "skipinit/ghost-batch-size"):
        evidence, _ = invented(figure, best_at_16, tmp_path, batch_sizes=(2, 16, 64, 512))
        assert check_of(evidence, "highest at batch size 16").verdict == "holds"
        merged = assert_whole(figure, evidence)
        assert merged["value_published"].iloc[0] == merged["value_measured"].iloc[0] == 16
        evidence, _ = invented(figure, as_told, tmp_path, batch_sizes=(2, 16, 64, 512))
        assert check_of(evidence, "at batch size 2 is below that at 16").verdict != "holds"


def test_the_bare_network_beside_ghost_batches(tmp_path: Path) -> None:
    def bare_diverges(metric: str, labels: Mapping[str, str]) -> Optimum:
        return Optimum(None) if scheme_of(labels) == "none" else as_told(metric, labels)

    evidence, laboratory = invented("skipinit/figure-7", bare_diverges, tmp_path, batch_sizes=(16, 32, 64))
    unreliable = [one for one in evidence.checks if one.claim.startswith("Without batch norm or SkipInit")]
    assert {one.verdict for one in unreliable} == {"holds"}
    evidence, _ = invented("skipinit/figure-7", as_told, tmp_path, batch_sizes=(16, 32, 64))
    assert {one.verdict for one in evidence.checks if one in unreliable} <= {"fails"}
    ghosts = {
        point.config.to_dict()["batch_size"]
        for point in laboratory.points
        if point.config.to_dict()["ghost_batch_size"] == 32
    }
    assert ghosts == {64}
    assert {point.config.to_dict()["data"] for point in laboratory.points} == {"cifar100"}


def test_unnormalized_runs_are_shared_between_figures(tmp_path: Path) -> None:
    _, ghost = invented("zeroinit/figure-1", as_told, tmp_path, batch_sizes=(16, 64, 128))
    _, whole = invented("zeroinit/figure-3", as_told, tmp_path, batch_sizes=(16, 64, 128))
    _, skipinit = invented("skipinit/figure-4", as_told, tmp_path, batch_sizes=(16, 64, 128))

    def hashes(laboratory: object, scheme: str) -> set[str]:
        points = laboratory.points  # type: ignore[attr-defined]
        return {point.config.hash for point in points if point.config.to_dict()["scheme"] == scheme}

    assert hashes(ghost, "none") & hashes(whole, "none")
    # Batches of at most 64 have no ghosts.
    assert hashes(ghost, "batch_norm") & hashes(whole, "batch_norm")
    assert hashes(skipinit, "zeroinit") == hashes(whole, "zeroinit")
    assert hashes(skipinit, "batch_norm") == hashes(whole, "batch_norm")


@pytest.mark.parametrize("table", IMAGENET)
def test_tables_on_imagenet_as_published(table: str, tmp_path: Path) -> None:
    rows = published_as(table).rows

    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        if metric != "test_accuracy":
            return Optimum(0.5)
        row = next(
            row
            for row in rows
            if row["method"] == labels["method"] and str(row["batch_size"]) == labels["batch_size"]
        )
        return Optimum(row["top1"], deviation=0.0, top5=row["top5"])

    evidence, laboratory = invented(table, world, tmp_path)
    merged = assert_whole(table, evidence)
    assert list(merged["top1_measured"]) == pytest.approx(list(merged["top1_published"]))
    assert list(merged["top5_measured"]) == pytest.approx(list(merged["top5_published"]))
    # One run per rate has no known error.
    assert verdict_of(evidence.checks) == "inconclusive"
    configs = [point.config.to_dict() for point in laboratory.points]
    assert {config["epochs"] for config in configs} == {90}
    assert {config["ghost_batch_size"] for config in configs if config["scheme"] == "batch_norm"} == {None, 256}
    effort = BUDGETS["small"]["effort"]
    assert effort.replicates == 2


@given(
    st.lists(st.integers(-9, 3), min_size=2, max_size=8, unique=True).map(sorted),
    st.integers(0, 13),
)
def test_rates_reach_from_the_optimum_at_64_to_that_of_the_batch(exponents: list[int], power: int) -> None:
    grid = Effort(exponents=tuple(exponents)).rates(2**power)
    held = [math.log2(rate) for rate in grid.rates]
    assert held == sorted(set(held))
    moved = {exponent + power - 6 for exponent in exponents}
    assert moved <= set(held) <= moved | set(exponents)
    assert power < 6 or set(exponents) <= set(held)


@pytest.mark.slow
def test_every_smoke_is_structured_even_if_undecided(tmp_path: Path) -> None:
    for figure in (*FIGURES, *SKIPINITS, *IMAGENET, "zeroinit/table-1"):
        evidence, laboratory = invented(figure, lambda metric, labels: Optimum(80.0), tmp_path, budget="smoke")
        assert evidence.checks
        assert {point.seed for point in laboratory.points} in ({0, 1}, {0, 1, 2})
        assert evidence.draw is not None
        evidence.draw().figure.draw_without_rendering()
