"""The tables over depth of the SkipInit and ZeroInit papers, and ZeroInit's ablation."""

from __future__ import annotations

from collections.abc import Mapping

from invented_runs import Optimum
from invented_runs import World as Ends
from worlds.trained import trained
from worlds.world import World

from normless_papers.published import published_as

# What the text does not print: table 1's accuracies, and batch norm's beside table 4 (of zeroinit/table-2).
BATCH_NORM = {16: 93.5, 100: 94.7, 1000: 94.6}
SMALL_ALPHA = ("skipinit_alpha_inv_sqrt_d", "skipinit_alpha_0")
UNTRAINED = Optimum(None)


def as_published(*tables: str) -> Ends:
    """Every combination that one of the tables prints reaches just that, by the metric printed, at its rate."""
    rows = [row for table in tables for row in published_as(table).rows]

    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        accuracy = metric == "test_accuracy"
        usual = Optimum(BATCH_NORM[int(labels["depth"])]) if accuracy else Optimum(0.01, deviation=0.0)
        for row in rows:
            name = row.get("variant", row.get("method"))
            if name not in labels.values() or str(row["depth"]) != labels["depth"]:
                continue
            if row.get("trainable") is False:
                return UNTRAINED
            if row.get(metric) is not None and not isinstance(row[metric], str):
                return Optimum(row[metric], row["lr_log2"], row["std"])
        return usual

    return world


def trained_the_wrong_way_round(metric: str, labels: Mapping[str, str]) -> Optimum:
    """What is said to train does not, what is said not to train does; batch norm only trains at 16 layers."""
    name, shallow = labels.get("variant", labels.get("method")), labels["depth"] == "16"
    trains = (
        shallow if name == "batch_norm" else not shallow and name in ("skipinit_alpha_1", "divide_block_by_sqrt2")
    )
    return _reached(metric, 93.0, 0.2) if trains else UNTRAINED


def only_the_deepest_trains(metric: str, labels: Mapping[str, str]) -> Optimum:
    """Networks with norms on the stream train at 1000 layers and at no other depth, batch norm at every depth."""
    trains = labels["variant"] == "batch_norm" or labels["depth"] == "1000"
    return _reached(metric, 93.0, 0.2) if trains else UNTRAINED


def losses_the_wrong_way_round(metric: str, labels: Mapping[str, str]) -> Optimum:
    """All train; SkipInit's losses are far above batch norm's, those with division by √2 below it."""
    return _reached(metric, 93.0, 0.5 if labels["variant"] in SMALL_ALPHA else 0.01)


def ablation_as_published(metric: str, labels: Mapping[str, str]) -> Optimum:
    """What zeroinit/table-1 prints, and batch norm at 16 layers."""
    rows = {row["method"]: row for row in published_as("zeroinit/table-1").rows}
    row = rows.get(labels["method"])
    if row is None:
        return _reached(metric, BATCH_NORM[16], 0.2)
    if metric == "test_accuracy":
        return Optimum(row["test_accuracy"], -2, row["std"])
    return Optimum(row["training_loss"], -3, row["training_loss_std"])


def multiplier_is_worst(metric: str, labels: Mapping[str, str]) -> Optimum:
    """The multiplier alone is the worst of all, and with biases and dropout worse still."""
    accuracies = {"scalar_multiplier": 85.0, "zeroinit": 80.0}
    name = labels["method"]
    return _reached(metric, accuracies.get(name, 90.0), 0.5 if name == "scalar_multiplier" else 0.2)


def _reached(metric: str, accuracy: float, loss: float) -> Optimum:
    return Optimum(accuracy, -2, 0.1) if metric == "test_accuracy" else Optimum(loss, -3, 0.001)


WORLDS: dict[str, World] = {
    "skipinit/table-1": trained("skipinit/table-1", as_published("skipinit/table-3"), trained_the_wrong_way_round),
    "skipinit/table-3": trained("skipinit/table-3", as_published("skipinit/table-3"), trained_the_wrong_way_round),
    "skipinit/table-4": trained("skipinit/table-4", as_published("skipinit/table-4"), only_the_deepest_trains),
    "skipinit/table-5": trained("skipinit/table-5", as_published("skipinit/table-5"), trained_the_wrong_way_round),
    "skipinit/table-6": trained("skipinit/table-6", as_published("skipinit/table-6"), losses_the_wrong_way_round),
    "zeroinit/table-1": trained("zeroinit/table-1", ablation_as_published, multiplier_is_worst),
    "zeroinit/table-2": trained("zeroinit/table-2", as_published("zeroinit/table-2"), trained_the_wrong_way_round),
    "zeroinit/table-3": trained(
        "zeroinit/table-3", as_published("zeroinit/table-2", "zeroinit/table-3"), trained_the_wrong_way_round
    ),
}
