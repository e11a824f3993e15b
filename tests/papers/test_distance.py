"""The distance of a set-up from the paper's, by what decides it: data, network, length, seeds."""

from __future__ import annotations

from typing import Any

from normless_papers.artefact import artefact_of, artefacts
from normless_papers.budgets import BUDGETS
from normless_papers.distance import Distance, distance_of
from normless_papers.experiments.effort import Effort

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
