"""The training artefacts of the Fixup paper as published, and as the opposite."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd
from papers_runs import End, Ends, made_up

from normless_lab.sweeps import Point
from normless_papers.claims import Estimate
from normless_papers.claims.agreement import Agreement
from normless_papers.experiments.runs import Runs
from normless_papers.fixup.translation import SCHEMES
from normless_papers.published import published_as
from worlds.world import World, ended

UNTRAINED = End(None)


def errors(artefact: str, *by: str) -> Mapping[tuple[str, ...], float]:
    """The test errors that a table prints, in percent, by the columns of its rows' names."""
    return {tuple(str(row[name]) for name in by): row["test_error"] for row in published_as(artefact).rows}


def depth_of(point: Point) -> int:
    """The depth in the text of a run's network."""
    found = re.search(r"depth=(\d+)", point.config.to_dict()["model"])
    assert found
    return int(found[1])


def by_method(accuracies: Mapping[str, float | None], name: str = "method", **others: Any) -> Ends:
    """Runs that reach an accuracy by their method, whose name may go on, or diverge."""

    def end(labels: Mapping[str, str], point: Point) -> End:
        return End(next(value for start, value in accuracies.items() if labels[name].startswith(start)), **others)

    return end


def first_epoch(labels: Mapping[str, str], point: Point) -> End:
    """Figure 3's axis ends at 55 %: there the curves of batch norm and Fixup begin, falling a little with depth."""
    depth, method = depth_of(point), labels["method"]
    if method in ("sqrt(1/2)", "LSUV", "no rule", "rules 1 and 3"):
        return UNTRAINED if depth > 100 else End(40.0)
    share = {"rule 2": 0.9}.get(method, 1.0)
    return End(share * (50.0 if depth < 10_000 else 40.0))


def reversed_depths(labels: Mapping[str, str], point: Point) -> End:
    """All but Fixup and its rule 2 train; batch norm less so beyond the shallowest network."""
    depth, method = depth_of(point), labels["method"]
    if method in ("LSUV", "sqrt(1/2)") and depth <= 100:
        return UNTRAINED
    own = {"BatchNorm": 60.0 if depth == 10 else 25.0, "Fixup": 10.0, "rule 2": 11.0}
    return End(own.get(method, 60.0))


def table_1(labels: Mapping[str, str], point: Point) -> End:
    """Xavier's weights reach what is printed at a rate of 0.001, and nothing at 0.01."""
    xavier = labels["method"] == "xavier_init"
    if xavier and point.rate >= 0.01:
        return UNTRAINED
    found = 100 - errors("fixup/table-1", "method")[labels["method"],]
    return End(found - 5 * (xavier and point.rate != 0.001))


def table_2(labels: Mapping[str, str], point: Point) -> End:
    printed = errors("fixup/table-2", "model", "method")
    return End(100 - printed[f"resnet_{depth_of(point)}", labels["method"]], chance=0.1)


def table_3(labels: Mapping[str, str], point: Point) -> End:
    name = "iwslt_de_en" if "iwslt" in point.config.to_dict()["data_root"] else "wmt_en_de"
    rows = [row for row in published_as("fixup/table-3").rows if row["data"] == name]
    printed = {row["method"].split()[0]: row["bleu"] for row in rows}
    return End(70.0, bleu=printed[labels["method"]], chance=5.0)


def no_translation(labels: Mapping[str, str], point: Point) -> End:
    return End(None, bleu=0.0, chance=5.0) if labels["method"] == "fixup" else End(70.0, bleu=30.0, chance=5.0)


def table_4(labels: Mapping[str, str], point: Point) -> End:
    data = point.config.to_dict()["data"].partition("(")[0]
    return End(100 - errors("fixup/table-4", "data", "method")[data, labels["method"]])


def fixup_fails(labels: Mapping[str, str], point: Point) -> End:
    return UNTRAINED if "fixup" in labels["method"].lower() else End(90.0)


def on_imagenet(test: Mapping[str, float], training: Mapping[str, float] | None = None) -> Ends:
    """Errors in percent by method."""

    def end(labels: Mapping[str, str], point: Point) -> End:
        method = labels["method"]
        return End(100 - test[method], None if training is None else 100 - training[method], chance=0.1)

    return end


_TABLE_2 = errors("fixup/table-2", "model", "method")
# Figure 6 ends at table 2's numbers. Of figure 5 the text prints batch norm and Fixup alone; group norm is near them.
_MIXUP = {
    "BatchNorm + Mixup": _TABLE_2["resnet_50", "batch_norm + mixup (Zhang et al. 2017)"],
    "GroupNorm + Mixup": _TABLE_2["resnet_50", "group_norm + mixup"],
    "Fixup + Mixup": _TABLE_2["resnet_50", "fixup + mixup"],
}
_NORM = _TABLE_2["resnet_50", "batch_norm (Goyal et al. 2017)"]
_PLAIN = {"BatchNorm": _NORM, "GroupNorm": _NORM, "Fixup": _TABLE_2["resnet_50", "fixup"]}
# Best by Xavier's weights and group norm, then Fixup, batch norm, and Fixup with Mixup.
_REVERSED_TABLE_2 = {"xavier": 80.0, "group_norm": 80.0, "batch_norm": 70.0, "fixup + mixup": 65.0, "fixup": 75.0}
# In the order of the curves of figure 4 at the end of the third epoch.
_FIGURE_4 = ("BatchNorm", "Fixup", "no bias", "0.1x, no bias", "no residual", "10x, no bias")


def figure_4(*accuracies: float | None) -> Ends:
    heights = dict(zip(_FIGURE_4, accuracies, strict=True))
    return lambda labels, _: End(heights[labels["configuration"]])


def scalar_rate(tenth: float, equal: float) -> Ends:
    """Errors with a tenth of the rate for scalars, and with equal rates."""
    return on_imagenet({"mixup, scalars at 1/10": tenth, "mixup, equal rates": equal})


def _runs(artefact: str, right: bool) -> Runs:
    """First epochs at every depth; or those where the baseline trains and Fixup does not."""
    return made_up(artefact, first_epoch if right else fixup_fails)[1][""]


def scaled(right: bool) -> dict[str, Any]:
    return {
        "sums": [Agreement("Every sum is √½ (x + F(x))", 0.0 if right else 1.0, 1e-6)],
        "factor": Estimate(1.0 if right else 1.5, 0.001, 32),
        "ratio": Estimate(1.0 if right else 0.5, 0.01, 32),
        "runs": _runs("fixup/sqrt2-scaling", right),
    }


def calibrated(right: bool) -> dict[str, Any]:
    return {
        "branch": [1.0, 1.01] if right else [1.0, 2.0],
        "weight layer": [0.99, 1.0] if right else [0.5, 1.0],
        "orthogonality": [Agreement("Every weight is orthogonal up to its scale", 0.0 if right else 1.0, 1e-4)],
        "runs": _runs("fixup/lsuv", right),
    }


def template(right: bool) -> tuple[tuple[Agreement, ...], pd.DataFrame, pd.DataFrame]:
    """Three runs of Fixup that train, or diverge, and three of layer normalization that train."""
    wanted = {"layer norms": 0, "scalar multipliers": 10, "scalar biases": 49}
    counts = [{"quantity": name, "count": one + (not right), "by_template": one} for name, one in wanted.items()]
    rows = []
    for scheme in SCHEMES:
        trains = right or scheme != "fixup"
        row = {"scheme": scheme, "rate": 0.001, "outcome": "trained" if trains else "diverged", "first_loss": 5.0}
        row |= {"last_loss": 2.0 if trains else 9.0, "chance_accuracy": 5.0, "test_accuracy": 70.0}
        rows += [row | {"seed": seed} for seed in range(3)]
    names = ("ends", "scaled", "kept", "embedding", "branches")
    agreements = tuple(Agreement(name, 0.0 if right else 1.0) for name in names)
    return agreements, pd.DataFrame(counts), pd.DataFrame(rows)


RUNS: dict[str, tuple[Ends, Ends]] = {
    "figure-3": (first_epoch, reversed_depths),
    "rule-2": (first_epoch, reversed_depths),
    # Xavier's weights are best, batch norm is worst, and neither it nor Fixup has half of the possible gain.
    "table-1": (table_1, by_method({"xavier_init": 90.0, "fixup": 45.0, "batch_norm": 40.0})),
    "figure-4": (figure_4(72.0, 70.0, 60.0, 50.0, 40.0, None), figure_4(90.0, 30.0, 50.0, 60.0, 70.0, 90.0)),
    "table-2": (table_2, by_method(_REVERSED_TABLE_2)),
    "figure-5": (
        on_imagenet(_PLAIN, {"BatchNorm": 20.0, "GroupNorm": 20.0, "Fixup": 15.0}),
        on_imagenet(
            {"BatchNorm": 24.0, "GroupNorm": 24.0, "Fixup": 20.0},
            {"BatchNorm": 20.0, "GroupNorm": 20.0, "Fixup": 25.0},
        ),
    ),
    "figure-6": (on_imagenet(_MIXUP), on_imagenet(dict(zip(_MIXUP, (23.0, 24.0, 95.0), strict=True)))),
    # The text prints table 2's number with a tenth of the rate; that with equal rates is worse.
    "scalar-lr": (scalar_rate(_MIXUP["Fixup + Mixup"], 25.0), scalar_rate(25.0, 24.0)),
    "table-3": (table_3, no_translation),
    "table-4": (table_4, fixup_fails),
}
WORLDS: dict[str, World] = {"fixup/sqrt2-scaling": scaled, "fixup/lsuv": calibrated, "fixup/transformer": template}
WORLDS |= {f"fixup/{name}": ended(f"fixup/{name}", *both) for name, both in RUNS.items()}
