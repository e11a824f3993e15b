"""The training artefacts of the Fixup paper as published, and as the opposite."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from made_up_runs import Ending, Endings, facts_of, made_up
from worlds.world import World

from normless_papers.artefact import artefact_of
from normless_papers.claims import Estimate
from normless_papers.claims.agreement import Agreement
from normless_papers.experiments.runs import Runs
from normless_papers.fixup.depth import first_epochs
from normless_papers.fixup.translation import SCHEMES
from normless_papers.published import published_as

UNTRAINED = Ending(0.1, "diverged")


def ended(artefact: str, published: Endings, opposite: Endings) -> World:
    """Of runs that end as one function or the other says, at the paper budget."""
    return World(
        lambda folder: facts_of(artefact, published, folder), lambda folder: facts_of(artefact, opposite, folder)
    )


def errors(artefact: str, *by: str) -> Mapping[tuple[str, ...], float]:
    """The test errors that a table prints, in percent, by the columns of its rows' names."""
    return {tuple(str(row[name]) for name in by): row["test_error"] for row in published_as(artefact).rows}


def depth_of(settings: Mapping[str, Any]) -> int:
    found = re.search(r"depth=(\d+)", settings["model"])
    assert found
    return int(found[1])


def _first_epoch(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    """Figure 3's axis ends at 55 %: there the curves of batch norm and Fixup begin, falling a little with depth."""
    depth, method = depth_of(settings), labels["method"]
    reached = 0.5 if depth < 10_000 else 0.4
    if method in ("sqrt(1/2)", "LSUV", "no rule", "rules 1 and 3"):
        return UNTRAINED if depth > 100 else Ending(0.4)
    return Ending({"rule 2": 0.9, "rules 1 and 2": 0.95}.get(method, 1.0) * reached)


def _reversed_depths(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    """All but Fixup and its rule 2 train; batch norm less so beyond the shallowest network."""
    if labels["method"] == "BatchNorm":
        return Ending(0.6 if depth_of(settings) == 10 else 0.25)
    if labels["method"] in ("LSUV", "sqrt(1/2)") and depth_of(settings) <= 100:
        return UNTRAINED
    if labels["method"] in ("Fixup", "rule 2"):
        return Ending(0.11 if labels["method"] == "rule 2" else 0.1)
    return Ending(0.6)


def _runs(artefact: str, methods: Mapping[str, str], endings: Endings, folder: Path) -> Runs:
    efforts = artefact_of(artefact).settings["paper"]["efforts"]
    return first_epochs(made_up(endings, folder), methods, efforts)


def _scaled(folder: Path, right: bool) -> tuple[Agreement, Estimate, Estimate, Runs]:
    methods = {"sqrt(1/2)": "sqrt2", "BatchNorm": "batch_norm", "Fixup": "fixup"}
    return (
        Agreement("Every sum is √½ (x + F(x))", 0.0 if right else 1.0, 1e-6),
        Estimate(1.0 if right else 1.5, 0.001, 32),
        Estimate(1.0 if right else 0.5, 0.01, 32),
        _runs("fixup/sqrt2-scaling", methods, _first_epoch if right else _deep_baselines, folder),
    )


def _calibrated(folder: Path, right: bool) -> tuple[Mapping[str, list[float]], Agreement, Runs]:
    methods = {"LSUV": "lsuv", "BatchNorm": "batch_norm", "Fixup": "fixup"}
    return (
        {"branch": [1.0, 1.01] if right else [1.0, 2.0], "weight layer": [0.99, 1.0] if right else [0.5, 1.0]},
        Agreement("Every weight is orthogonal up to its scale", 0.0 if right else 1.0, 1e-4),
        _runs("fixup/lsuv", methods, _first_epoch if right else _deep_baselines, folder),
    )


def _deep_baselines(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    """Batch norm and the baseline train, Fixup does not."""
    return UNTRAINED if labels["method"] == "Fixup" else Ending(0.5)


def _table_1(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    """Xavier's weights reach what is printed at a rate of 0.001, and nothing at 0.01."""
    if labels["method"] == "xavier_init" and settings["rate"] >= 0.01:
        return UNTRAINED
    found = 1 - errors("fixup/table-1", "method")[labels["method"],] / 100
    far = labels["method"] == "xavier_init" and settings["rate"] != 0.001
    return Ending(found - 0.05 * far)


def _reversed_table_1(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    """Xavier's weights are best, batch norm is worst, and neither it nor Fixup has half of the possible gain."""
    return Ending({"xavier_init": 0.9, "fixup": 0.45, "batch_norm": 0.4}[labels["method"]])


def _ablation(heights: Mapping[str, float]) -> Endings:
    def ending(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
        height = heights[labels["configuration"]]
        return Ending(height) if height > 0.1 else UNTRAINED

    return ending


# In the order of the curves of figure 4 at the end of the third epoch.
_CONFIGURATIONS = ("BatchNorm", "Fixup", "no bias", "0.1x, no bias", "no residual", "10x, no bias")
_FIGURE_4 = dict(zip(_CONFIGURATIONS, (0.72, 0.7, 0.6, 0.5, 0.4, 0.1), strict=True))
_REVERSED_FIGURE_4 = dict(zip(_CONFIGURATIONS, (0.9, 0.3, 0.5, 0.6, 0.7, 0.9), strict=True))


def _on_imagenet(test_errors: Mapping[str, float], training: Mapping[str, float] | None = None) -> Endings:
    """Errors in percent by method."""

    def ending(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
        method = labels["method"]
        own = None if training is None else 1 - training[method] / 100
        return Ending(1 - test_errors[method] / 100, training_accuracy=own, chance=0.001)

    return ending


def _table_2(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    model = f"resnet_{depth_of(settings)}"
    return Ending(1 - errors("fixup/table-2", "model", "method")[model, labels["method"]] / 100, chance=0.001)


def _reversed_table_2(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    """Best by Xavier's weights and group norm, then Fixup, batch norm, and Fixup with Mixup."""
    names = {"xavier": 20.0, "group_norm": 20.0, "batch_norm": 30.0, "fixup + mixup": 35.0, "fixup": 25.0}
    return Ending(1 - next(value for name, value in names.items() if labels["method"].startswith(name)) / 100)


def _with_mixup() -> Mapping[str, float]:
    """Figure 6 ends at table 2's numbers."""
    printed = errors("fixup/table-2", "model", "method")
    return {
        "BatchNorm + Mixup": printed["resnet_50", "batch_norm + mixup (Zhang et al. 2017)"],
        "GroupNorm + Mixup": printed["resnet_50", "group_norm + mixup"],
        "Fixup + Mixup": printed["resnet_50", "fixup + mixup"],
    }


def _without_mixup() -> Mapping[str, float]:
    """Of figure 5 the text prints batch norm and Fixup alone, as table 2; group norm is near batch norm."""
    printed = errors("fixup/table-2", "model", "method")
    norm = printed["resnet_50", "batch_norm (Goyal et al. 2017)"]
    return {"BatchNorm": norm, "GroupNorm": norm, "Fixup": printed["resnet_50", "fixup"]}


def _scalar_rate(tenth: float, equal: float) -> Endings:
    return _on_imagenet({"mixup, scalars at 1/10": tenth, "mixup, equal rates": equal})


def _table_4(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    data = settings["data"].partition("(")[0]
    return Ending(1 - errors("fixup/table-4", "data", "method")[data, labels["method"]] / 100)


def _fixup_fails(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    return UNTRAINED if "fixup" in labels["method"].lower() else Ending(0.9)


def _table_3(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    name = "iwslt_de_en" if "iwslt" in settings["data_root"] else "wmt_en_de"
    printed = {
        row["method"].split()[0]: row["bleu"] for row in published_as("fixup/table-3").rows if row["data"] == name
    }
    return Ending(0.7, bleu=printed[labels["method"]], chance=0.05)


def _no_translation(labels: Mapping[str, str], settings: Mapping[str, Any]) -> Ending:
    if labels["method"] == "fixup":
        return Ending(0.05, "diverged", bleu=0.0, chance=0.05)
    return Ending(0.7, bleu=30.0, chance=0.05)


def _template(outcomes: Sequence[str], right: bool) -> tuple[tuple[Agreement, ...], pd.DataFrame, pd.DataFrame]:
    """Three runs of Fixup with these outcomes, and three of layer normalization that trained."""
    names = ("ends", "scaled", "kept", "embedding", "branches")
    wanted = {"layer norms": 0, "scalar multipliers": 10, "scalar biases": 49}
    rows = [
        {"scheme": scheme, "rate": 0.001, "seed": seed, "outcome": outcome, "first_loss": 5.0}
        | {"last_loss": 2.0 if outcome == "trained" else 9.0, "chance_accuracy": 5.0, "test_accuracy": 70.0}
        for scheme in SCHEMES
        for seed, outcome in enumerate(outcomes if scheme == "fixup" else ["trained"] * 3)
    ]
    return (
        tuple(Agreement(name, 0.0 if right else 1.0) for name in names),
        pd.DataFrame(
            {"quantity": name, "count": count + (not right), "by_template": count} for name, count in wanted.items()
        ),
        pd.DataFrame(rows),
    )


WORLDS: dict[str, World] = {
    "fixup/figure-3": ended("fixup/figure-3", _first_epoch, _reversed_depths),
    "fixup/rule-2": ended("fixup/rule-2", _first_epoch, _reversed_depths),
    "fixup/sqrt2-scaling": World(lambda folder: _scaled(folder, True), lambda folder: _scaled(folder, False)),
    "fixup/lsuv": World(lambda folder: _calibrated(folder, True), lambda folder: _calibrated(folder, False)),
    "fixup/table-1": ended("fixup/table-1", _table_1, _reversed_table_1),
    "fixup/figure-4": ended("fixup/figure-4", _ablation(_FIGURE_4), _ablation(_REVERSED_FIGURE_4)),
    "fixup/table-2": ended("fixup/table-2", _table_2, _reversed_table_2),
    "fixup/figure-5": ended(
        "fixup/figure-5",
        _on_imagenet(_without_mixup(), {"BatchNorm": 20.0, "GroupNorm": 20.0, "Fixup": 15.0}),
        _on_imagenet(
            {"BatchNorm": 24.0, "GroupNorm": 24.0, "Fixup": 20.0},
            {"BatchNorm": 20.0, "GroupNorm": 20.0, "Fixup": 25.0},
        ),
    ),
    "fixup/figure-6": ended(
        "fixup/figure-6",
        _on_imagenet(_with_mixup()),
        _on_imagenet({"BatchNorm + Mixup": 23.0, "GroupNorm + Mixup": 24.0, "Fixup + Mixup": 95.0}),
    ),
    # The text prints table 2's number with a tenth of the rate; that with equal rates is worse.
    "fixup/scalar-lr": ended(
        "fixup/scalar-lr", _scalar_rate(_with_mixup()["Fixup + Mixup"], 25.0), _scalar_rate(25.0, 24.0)
    ),
    "fixup/table-4": ended("fixup/table-4", _table_4, _fixup_fails),
    "fixup/table-3": ended("fixup/table-3", _table_3, _no_translation),
    "fixup/transformer": World(
        lambda _: _template(["trained"] * 3, True), lambda _: _template(["diverged"] * 3, False)
    ),
}
