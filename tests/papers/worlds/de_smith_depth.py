"""The tables over depth and on ImageNet of the SkipInit and ZeroInit papers, and ZeroInit's ablation."""

from __future__ import annotations

from collections.abc import Mapping

from papers_runs import Optima, Optimum

from normless_papers.published import published_as
from worlds.world import World, trained

# What the text does not print: table 1's accuracies, and batch norm's beside table 4 (of zeroinit/table-2).
BATCH_NORM = {16: 93.5, 100: 94.7, 1000: 94.6}
SMALL_ALPHA = ("skipinit_alpha_inv_sqrt_d", "skipinit_alpha_0")
UNTRAINED = Optimum(None)


def as_published(*tables: str) -> Optima:
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


def on_imagenet(table: str) -> Optima:
    """The printed top-1 and top-5 accuracies."""
    rows = {(row["method"], str(row["batch_size"])): row for row in published_as(table).rows}

    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        row = rows[labels["method"], labels["batch_size"]]
        return Optimum(row["top1"], deviation=0.0, top5=row["top5"]) if metric == "test_accuracy" else Optimum(0.5)

    return world


def _reaching(accuracies: Mapping[str, tuple[float, float, float]], names: Mapping[str, str]) -> Optima:
    """Given accuracies, by the table's names of the methods."""

    def world(metric: str, labels: Mapping[str, str]) -> Optimum:
        place = ("256", "1024", "4096").index(labels["batch_size"])
        name = names.get(labels["method"], labels["method"])
        return Optimum(accuracies[name][place], deviation=0.0) if metric == "test_accuracy" else Optimum(0.5)

    return world


def _without_identity(unbiased: str, biased: str) -> Optima:
    return _reaching(V1, {unbiased: "unbiased", biased: "biased"})


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
    "zeroinit/table-4": trained("zeroinit/table-4", on_imagenet("zeroinit/table-4"), _reaching(V2, {})),
    "zeroinit/table-5": trained(
        "zeroinit/table-5", on_imagenet("zeroinit/table-5"), _without_identity("zeroinit", "zeroinit_scalar_bias")
    ),
    "skipinit/table-7": trained(
        "skipinit/table-7",
        on_imagenet("skipinit/table-7"),
        _without_identity("regularized_skipinit", "regularized_skipinit_scalar_bias"),
    ),
}
