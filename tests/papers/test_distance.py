"""The distance of a set-up from the paper's, by what decides it: data, network, length, seeds."""

from __future__ import annotations

from typing import Any

import pytest

from normless_lab.sweeps import RateGrid
from normless_papers.artefact import artefacts
from normless_papers.budgets import BUDGETS
from normless_papers.distance import Distance, distance_of
from normless_papers.experiments.effort import Effort, Plateau

PAPER: dict[str, Any] = {
    "effort": Effort("cifar10", "normless:resnet_cifar(depth=110)", epochs=164, replicates=5, best=5),
    "depths": (16, 100, 1000),
}


@pytest.mark.parametrize(
    ("changes", "column", "words"),
    [
        ({"data": "digits"}, 0, "digits instead of cifar10"),
        (
            {"model": "normless:resnet_cifar(depth=20)"},
            1,
            "resnet_cifar(depth=20) instead of resnet_cifar(depth=110)",
        ),
        ({"epochs": 5}, 2, "epochs 5 instead of 164"),
        ({"rates": RateGrid((0.1, 0.2), None)}, 2, "rates 0.1, 0.2 instead of 0.1"),
        ({"replicates": 2}, 3, "replicates 2 instead of 5"),
        ({"reduced": "in words"}, 0, "the paper's"),
        ({"plateau": Plateau({"depth": 1000}, 94.6, "table 2")}, 1, "the paper's"),
    ],
)
def test_a_setting_changes_its_own_column(changes: dict[str, Any], column: int, words: str) -> None:
    ours = PAPER | {"effort": Effort(**(vars(PAPER["effort"]) | changes))}
    columns = distance_of({"small": ours, "paper": PAPER}, "small").columns
    assert columns[column] == words
    assert [text for place, text in enumerate(columns) if place != column] == ["the paper's"] * 3


def test_only_data_and_network_make_another_kind() -> None:
    longer = PAPER | {"effort": Effort(**(vars(PAPER["effort"]) | {"epochs": 5, "replicates": 1}))}
    assert distance_of({"gpu": longer, "paper": PAPER}, "gpu").of_same_kind
    fewer = distance_of({"gpu": PAPER | {"depths": (16, 100)}, "paper": PAPER}, "gpu")
    assert fewer.of_same_kind
    assert fewer.network
    shallower = PAPER | {"depths": (16, 40)}
    assert not distance_of({"gpu": shallower, "paper": PAPER}, "gpu").of_same_kind
    assert not distance_of({"paper": PAPER}, "paper", data="digits").of_same_kind
    assert distance_of({"paper": PAPER}, "paper") == Distance()


def test_images_that_were_compressed_again_are_named_and_of_the_same_kind() -> None:
    distance = distance_of({"paper": PAPER}, "paper", origin="cifar10: Parquet files of JPEG images")
    assert "JPEG" in distance.data
    assert distance.of_same_kind
    assert distance_of({"paper": PAPER}, "paper", origin="cifar10: Parquet files of PNG images").data == ""


def test_several_efforts_are_compared_together() -> None:
    depths = {"efforts": tuple(Effort("cifar10", f"normless:dense(depth={depth})") for depth in (16, 100, 1000))}
    fewer = distance_of({"gpu": {"efforts": depths["efforts"][1:]}, "paper": depths}, "gpu")
    assert fewer.network == "without dense(depth=16)"
    assert fewer.of_same_kind
    other = {"efforts": (Effort("digits", "normless:dense(depth=100)"),)}
    assert distance_of({"gpu": other, "paper": depths}, "gpu").data == "digits instead of cifar10"


def test_data_and_networks_are_compared_wherever_they_stand() -> None:
    paper = {"efforts": {"iwslt": Effort("iwslt", "normless:dense(depth=9)"), "wmt": Effort("wmt")}}
    ours = {"efforts": {"grammar": Effort("grammar", "normless:dense(depth=2)")}}
    distance = distance_of({"small": ours, "paper": paper}, "small")
    assert distance.data == "grammar instead of iwslt, wmt"
    assert distance.network == "dense(depth=2) instead of dense(depth=9)"


def test_without_the_papers_set_up_it_is_unknown() -> None:
    unknown = distance_of({"smoke": PAPER}, "smoke")
    assert not unknown.of_same_kind
    assert unknown.columns == ("unknown",) * 4


def test_every_artefact_has_a_distance_and_none_from_its_own_set_up() -> None:
    for name, artefact in artefacts().items():
        for budget in BUDGETS:
            distance = distance_of(artefact.settings, budget)
            assert distance.known, name
            assert budget != "paper" or distance == Distance(), name
