"""Guidelines 1 to 4: L2 on the weights of image networks, and on the γ of one role (tables 2, figure 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.data import load_data
from normless.plots import ROLE_INKS
from normless.probes import probe
from normless.train import trained_network
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, larger, replicates
from normless_papers.effort import Effort
from normless_papers.gamma.decay_comparison import BASELINE, L2, POINTS, DecayComparison, compared
from normless_papers.plots import DIFFERENCES
from normless_papers.published import published_as
from normless_papers.runs import chosen

# The columns of table 2: what decays besides the weights, and the role of γ that it is.
COLUMNS = MappingProxyType({"gamma_last": "last", "gamma_down": "down", "gamma_0": "stem", "gamma_others": "other"})
INKS = MappingProxyType({name: ROLE_INKS[f"γ {role}"] for name, role in COLUMNS.items()})
# What the guidelines promise of each column.
RAISES = MappingProxyType({"gamma_last": True, "gamma_down": False, "gamma_0": False, "gamma_others": True})
_REMARK = (
    "The paper's appendix with λ, learning rates, batch size and epochs is not available, and whether it trains "
    "from scratch is not said; these are ours, and the networks start from random weights."
)


def _printed() -> dict[str, Mapping[str, Any]]:
    """The rows of table 2 by network."""
    return {row["model"]: row for row in published_as("gamma/table-2").rows}


def compared_by_role(context: Context, effort: Effort) -> DecayComparison:
    """Every network with L2 on its weights, and on the γ of one role; axes `model` and `l2`."""
    policies = {BASELINE: "weights"} | {name: f"weights+{role}" for name, role in COLUMNS.items()}
    return compared(context, effort, "gamma/table-2", {"model": effort.variants}, policies)


def _table_2_checks(found: DecayComparison) -> list[Check]:
    checks = []
    for model in found.table["model"].unique():
        for name in COLUMNS:
            points = float(_printed()[model][f"diff_{name}"])
            verb = "raises" if points > 0 else "lowers"
            claim = f"L2 on {name} {verb} the test accuracy of {model}, in the paper by {abs(points):.2f} points."
            checks.append(found.better(claim, name, wanted=points > 0, model=model))
    return checks


@artefact("gamma/table-2", basis="training", checks=_table_2_checks)
def accuracy_by_role(context: Context, *, effort: Effort) -> Evidence:
    """Test accuracy with L2 on W and one group of γ, and its difference to that with L2 on W alone."""
    found = compared_by_role(context, effort)
    rows = []
    for model, table in found.table.groupby("model", sort=False):
        row: dict[str, Any] = {"model": model}
        for one in table.to_dict("records"):
            name = one[L2] if one[L2] == BASELINE else f"W_{one[L2]}"
            row |= {name: one["mean"], f"{name}_deviation": one["deviation"]}
            if one[L2] != BASELINE:
                row |= {f"diff_{one[L2]}": one["difference"], f"diff_{one[L2]}_error": one["error"]}
            row |= {f"{name}_rate": one["rate"], f"{name}_n": one["n"]}
        rows.append(row)
    return found.evidence(
        lambda: _draw(found, tuple(COLUMNS)), measured=pd.DataFrame(rows), on=("model",), remarks=(_REMARK,)
    )


def _draw(found: DecayComparison, columns: Sequence[str]) -> Axes:
    """The differences to L2 on the weights alone of some columns, with the published ones."""
    table = found.table[found.table[L2].isin(columns)]
    published = [float(_printed()[row["model"]][f"diff_{row[L2]}"]) for row in table.to_dict("records")]
    return DIFFERENCES(
        table.assign(published=published),
        y=L2,
        beside="published",
        inks=INKS,
        title="L2 on the γ of one role",
        x_label=f"{POINTS}; diamonds: published",
        groups="model",
    )


def role_checks(found: DecayComparison, column: str) -> list[Check]:
    """A check for every network of what the guideline about one column promises, with the printed difference."""
    verb, checks = "raises" if RAISES[column] else "lowers", []
    for model in found.table["model"].unique():
        claim = f"L2 on {column} besides the weights {verb} the test accuracy of {model}."
        one = found.better(claim, column, wanted=RAISES[column], model=model)
        printed = float(_printed()[model][f"diff_{column}"])
        checks.append(replace(one, numbers={**one.numbers, "published_difference": printed}))
    return checks


def _of_column(context: Context, effort: Effort, column: str) -> Evidence:
    """The optima with L2 on one column and without, with the printed differences; the facts are the comparison."""
    found, printed = compared_by_role(context, effort), _printed()
    shown = found.table[found.table[L2].isin([BASELINE, column])].reset_index(drop=True)
    differences = [float(printed[row["model"]].get(f"diff_{row[L2]}", 0.0)) for row in shown.to_dict("records")]
    measured = shown.assign(published_difference=differences)
    return found.evidence(lambda: _draw(found, (column,)), measured=measured, remarks=(_REMARK,))


@dataclass(frozen=True)
class Branches:
    """The comparison of table 2, and γ_last and the branches of networks trained with L2 on it and without.

    Attributes:
        comparison: by test accuracy.
        shares: a row per trained network: `l2`, `seed`, `gamma_last`, `branch_share`, means over its blocks.
    """

    comparison: DecayComparison
    shares: pd.DataFrame

    def estimate(self, l2: str, column: str) -> Estimate:
        """One of the numbers over the seeds."""
        return replicates(chosen(self.shares, l2=l2).set_index("seed")[column], name=l2)


def _guideline_1_checks(found: Branches) -> list[Check]:
    claims = {
        "gamma_last": "With L2 on it γ_last ends smaller than without.",
        "branch_share": "The branches' variance is then a smaller part of their skip paths'.",
    }
    return [
        *role_checks(found.comparison, "gamma_last"),
        *(
            larger(claim, found.estimate(BASELINE, column), found.estimate("gamma_last", column))
            for column, claim in claims.items()
        ),
    ]


@artefact("gamma/guideline-1", basis="training", checks=_guideline_1_checks)
def decay_gamma_last(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_last raises the accuracy, and keeps γ_last and the branch's share of the variance small."""
    evidence = _of_column(context, effort, "gamma_last")
    shares = _shares(context, effort, evidence.facts)
    means = shares.groupby(L2)[["gamma_last", "branch_share"]].mean().add_prefix("trained_").reset_index()
    remark = (
        f"trained_gamma_last and trained_branch_share are of {next(iter(effort.variants))}, trained once more with "
        "each seed at the baseline's best learning rate: roots of mean squares, and the mean over blocks of the "
        "branch's second moment over the skip path's, on test images and their batch statistics."
    )
    return replace(
        evidence,
        facts=Branches(evidence.facts, shares),
        measured=evidence.measured.merge(means, how="left", on=L2),
        remarks=(*evidence.remarks, remark),
    )


def _shares(context: Context, effort: Effort, found: DecayComparison) -> pd.DataFrame:
    """A row per trained network of the first model, with L2 on γ_last and without, measured on test images.

    γ_last is the root of its mean square; the branch's share is its second moment over the skip path's.
    """
    model = next(iter(effort.variants))
    best = chosen(found.table, model=model, l2=BASELINE)["rate"].iloc[0]
    data = load_data(effort.data_in(context), root=context.data_root)
    inputs = next(iter(data.test_batches(min(256, data.test_size)))).inputs
    points = [
        point
        for point in found.runs.sweeps[0].points()
        if point.labels["model"] == model and point.labels[L2] in (BASELINE, "gamma_last") and point.rate == best
    ]
    rows = []
    for point, folder in zip(points, context.lab.weights([point.config for point in points]), strict=True):
        blocks = probe(trained_network(folder), inputs, ["stream"]).stream
        share = blocks["branch_second_moment"] / blocks["skip_second_moment"]
        means = {"gamma_last": blocks["gamma_last"].mean(), "branch_share": share.mean()}
        rows.append({L2: point.labels[L2], "seed": point.seed, **means})
    return pd.DataFrame(rows, columns=[L2, "seed", "gamma_last", "branch_share"])


def _guideline_2_checks(found: DecayComparison) -> list[Check]:
    return role_checks(found, "gamma_down")


@artefact("gamma/guideline-2", basis="training", checks=_guideline_2_checks)
def spare_gamma_down(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_down lowers the accuracy."""
    return _of_column(context, effort, "gamma_down")


def _guideline_3_checks(found: DecayComparison) -> list[Check]:
    """The text itself names networks that gain, so that the claim is about most networks and not each."""
    verdicts = [one.verdict for one in role_checks(found, "gamma_0")]
    lowered, raised, undecided = (verdicts.count(one) for one in ("holds", "fails", "inconclusive"))
    most = True if lowered > raised + undecided else False if raised >= lowered + undecided else None
    return [
        check(
            "L2 on gamma_0 besides the weights lowers the test accuracy of more networks than it raises.",
            most,
            lowered=lowered,
            raised=raised,
            undecided=undecided,
        )
    ]


@artefact("gamma/guideline-3", basis="training", checks=_guideline_3_checks)
def spare_gamma_0(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_0 lowers the accuracy in most networks; in three of eight of the paper it raises it."""
    return _of_column(context, effort, "gamma_0")


def _guideline_4_checks(found: DecayComparison) -> list[Check]:
    return role_checks(found, "gamma_others")


@artefact("gamma/guideline-4", basis="training", checks=_guideline_4_checks)
def decay_gamma_others(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_others raises the accuracy."""
    return _of_column(context, effort, "gamma_others")


def _figure_3_checks(found: DecayComparison) -> list[Check]:
    return [
        found.better(
            f"L2 on γ_down lowers the test accuracy at λ = {strength}.",
            "gamma_down",
            wanted=False,
            **{"lambda": strength},
        )
        for strength in found.table["lambda"].unique()
    ]


@artefact("gamma/figure-3", basis="training", checks=_figure_3_checks)
def cost_of_decaying_gamma_down(
    context: Context, *, effort: Effort, model: str, strengths: Sequence[float]
) -> Evidence:
    """Test accuracy with L2 of several λ on W, and on W and γ_down: the second is lower at every λ."""
    axis = {f"{strength:g}": {"weight_decay": float(strength)} for strength in strengths}
    policies = {BASELINE: "weights", "gamma_down": "weights+down"}
    found = compared(context, effort, "gamma/figure-3", {"lambda": axis}, policies, model=model)
    rows = []
    for strength, table in found.table.groupby("lambda", sort=False):
        row: dict[str, Any] = {"lambda": strength}
        for one in table.to_dict("records"):
            name = "W" if one[L2] == BASELINE else "W_gamma_down"
            row |= {name: one["mean"], f"{name}_deviation": one["deviation"], f"{name}_rate": one["rate"]}
            row |= {"n": one["n"]} | ({} if one[L2] == BASELINE else {"difference": one["difference"]})
        rows.append(row)
    return found.evidence(
        lambda: found.draw(INKS, "L2 on γ_down at several λ", groups="lambda"),
        measured=pd.DataFrame(rows),
        remarks=(_REMARK,),
    )
