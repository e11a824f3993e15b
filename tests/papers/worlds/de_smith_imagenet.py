"""The tables on ImageNet of the SkipInit and ZeroInit papers."""

from __future__ import annotations

from collections.abc import Mapping

from invented_runs import Optimum
from invented_runs import World as Ends
from worlds.trained import trained
from worlds.world import World

from normless_papers.published import published_as

# Of the opposite, at batch sizes 256, 1024 and 4096: batch norm falls, and the others do not follow it.
V2 = {
    "batch_norm": (78.0, 72.0, 70.0),
    "fixup": (70.0, 68.0, 73.0),
    "zeroinit": (70.0, 68.0, 73.0),
    "zeroinit_without_dropout": (60.0, 60.0, 60.0),
}
# ZeroInit is best, and a scalar bias makes it worst.
V1 = {
    "batch_norm": (75.0, 70.0, 60.0),
    "fixup": (72.0, 67.0, 65.0),
    "unbiased": (76.0, 76.0, 76.0),
    "biased": (60.0, 60.0, 60.0),
}


def as_published(table: str) -> Ends:
    """The printed top-1 and top-5 accuracies."""
    rows = {(row["method"], str(row["batch_size"])): row for row in published_as(table).rows}

    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        row = rows[labels["method"], labels["batch_size"]]
        return Optimum(row["top1"], deviation=0.0, top5=row["top5"]) if metric == "test_accuracy" else Optimum(0.5)

    return world


def _reaching(accuracies: Mapping[str, tuple[float, float, float]], names: Mapping[str, str]) -> Ends:
    """Given accuracies, by the table's names of the methods."""

    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        place = ("256", "1024", "4096").index(labels["batch_size"])
        name = names.get(labels["method"], labels["method"])
        return Optimum(accuracies[name][place], deviation=0.0) if metric == "test_accuracy" else Optimum(0.5)

    return world


def _without_identity(unbiased: str, biased: str) -> Ends:
    return _reaching(V1, {unbiased: "unbiased", biased: "biased"})


WORLDS: dict[str, World] = {
    "zeroinit/table-4": trained("zeroinit/table-4", as_published("zeroinit/table-4"), _reaching(V2, {})),
    "zeroinit/table-5": trained(
        "zeroinit/table-5", as_published("zeroinit/table-5"), _without_identity("zeroinit", "zeroinit_scalar_bias")
    ),
    "skipinit/table-7": trained(
        "skipinit/table-7",
        as_published("skipinit/table-7"),
        _without_identity("regularized_skipinit", "regularized_skipinit_scalar_bias"),
    ),
}
