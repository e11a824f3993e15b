"""What training artefacts ask for: the published numbers of runs, shared between artefacts, and their distance.

What trainings have at the paper's budget else stands on the page of protocols, beside the words of the texts.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
from hypothesis import given, strategies as st

from normless_lab.sweeps import RateGrid
from normless_papers.artefact import Budget, artefact_of, artefacts
from normless_papers.budgets import BUDGETS
from normless_papers.distance import Distance, distance_of
from normless_papers.experiments.de_smith import rates_at
from normless_papers.experiments.effort import Effort
from normless_papers.experiments.protocol import asked_by

# Combinations × rates × repetitions, added over the sweeps of an artefact.
RUNS = {
    "understanding-bn/figure-1": 4 * 5,
    "understanding-bn/figure-16": 3 * 5,
    "understanding-bn/table-2": 7 * 9 * 5,
    "understanding-bn/experimental-setup": 2 * 9 * 5,
    "understanding-bn/table-3": 6 * 9 * 5,
    "understanding-bn/warm-start": 3 * 9 * 5,
    "fixup/table-1": 2 * 5 + 5 * 5,
    "fixup/figure-3": 6 * 4 * 5 + 4 * 3,
    "fixup/rule-2": 6 * 5 * 5 + 5 * 3,
    "fixup/table-4": 2 * 5 + 2 * 5,
    "fixup/table-2": 5 + 4 + 3,
    "skipinit/table-1": 6 * 3 * 7 * 15,
    "zeroinit/table-2": 2 * 3 * 7 * 15,
}


@cache
def runs_of(name: str) -> set[str]:
    """The hashes of the runs that an artefact asks for at the paper's budget."""
    sweeps = {id(asked.sweep): asked.sweep for asked in asked_by(name)}
    return {point.config.hash for sweep in sweeps.values() for point in sweep.points()}


@pytest.mark.parametrize("name", RUNS)
def test_artefacts_have_the_published_numbers_of_runs(name: str) -> None:
    assert len(runs_of(name)) == RUNS[name]


def test_artefacts_share_runs() -> None:
    paper = "understanding-bn"
    assert runs_of(f"{paper}/experimental-setup") < runs_of(f"{paper}/table-2")
    assert runs_of(f"{paper}/warm-start") < runs_of(f"{paper}/table-3")
    # Batch norm and Fixup.
    assert len(runs_of("fixup/figure-3") & runs_of("fixup/rule-2")) == 2 * (6 * 5 + 3)
    # The multiplier of one is a row of the other, at three depths.
    assert len(runs_of("zeroinit/table-2") & runs_of("skipinit/table-1")) == 3 * 7 * 15


POWERS = st.lists(st.integers(-9, 3), min_size=2, max_size=8, unique=True).map(sorted)


@given(POWERS, st.integers(0, 13))
def test_rates_reach_from_the_optimum_at_64_to_that_of_the_batch(exponents: list[int], power: int) -> None:
    rates = RateGrid(tuple(2.0**exponent for exponent in exponents), 2.0)
    held = [math.log2(rate) for rate in rates_at(Effort(data="cifar10", rates=rates), 2**power).rates]
    assert held == sorted(set(held))
    moved = {exponent + power - 6 for exponent in exponents}
    between = range(max(exponents), min(moved))
    assert moved <= set(held) <= moved | set(exponents) | set(between)
    assert power < 6 or set(exponents) <= set(held)


@pytest.mark.parametrize("budget", BUDGETS)
def test_the_warm_start_is_batch_norms_alone(budget: Budget) -> None:
    """He et al. 2016, section 4.2, of their network, which has batch norm; it kills Fixup, and Xavier has none."""
    configs = [asked.config.to_dict() for asked in asked_by("fixup/table-1", budget)]
    # ResNet-20, of smoke and cpu, needs none.
    warm = int(budget not in ("smoke", "cpu"))
    assert {config["scheme"]: config["warm_start_epochs"] for config in configs} == {
        "batch_norm": warm,
        "fixup": 0,
        "xavier": 0,
    }


@pytest.mark.parametrize("name", ["zeroinit/table-4", "skipinit/table-7"])
def test_on_imagenet_fixups_scalars_have_a_tenth_of_the_rate(name: str) -> None:
    """As in the authors' code; those of ZeroInit have it all."""
    configs = [asked.config.to_dict() for asked in asked_by(name)]
    assert {config["scheme"] for config in configs if config["scalar_rate_scale"] != 1} == {"fixup"}
    assert {config["scalar_rate_scale"] for config in configs} == {0.1, 1.0}


EFFORT = Effort("cifar10", "normless:resnet_cifar(depth=110)", epochs=164, replicates=5, best=5)
PAPER: dict[str, Any] = {"effort": EFFORT, "depths": (16, 100, 1000)}
DEPTHS = {"efforts": tuple(Effort("cifar10", f"normless:dense(depth={depth})") for depth in (16, 100, 1000))}


def at(own: Any, paper: Any = PAPER) -> Distance:
    """The distance of an artefact whose settings decide a number of depths."""
    return distance_of(artefact_of("skipinit/skipinit"), "small", settings={"small": own, "paper": paper})


def test_fewer_depths_are_the_same_kind_and_other_depths_are_not() -> None:
    fewer, shallower = (at(PAPER | {"depths": depths}) for depths in ((16, 100), (16, 40)))
    assert fewer.network
    assert (fewer.of_same_kind, shallower.of_same_kind) == (True, False)
    distance = at({"efforts": DEPTHS["efforts"][1:]}, DEPTHS)
    assert (distance.network, distance.of_same_kind) == ("without dense(depth=16)", True)


def test_every_artefact_has_a_distance_and_none_from_its_own_set_up() -> None:
    for name, artefact in artefacts().items():
        distances = {budget: distance_of(artefact, budget) for budget in BUDGETS}
        assert all(distance.known for distance in distances.values()), name
        assert distances["paper"] == Distance(), name
