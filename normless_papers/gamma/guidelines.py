"""Guidelines 1 to 4, each on the column of table 2 that it is about."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from normless.data import load_data
from normless.probes import gamma_variance_table
from normless.train import trained_network
from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.gamma.comparison import BASELINE, L2, Comparison
from normless_papers.gamma.roles import (
    Effort,
    draw_roles,
    reduction_of,
    remarks_of,
    role_checks,
    roles_compared,
    roles_setup,
    roles_sweep,
)
from normless_papers.published import published_as
from normless_papers.trained import replicates
from normless_papers.verdict import Check, Estimate, check, larger


@dataclass(frozen=True)
class Branches:
    """The comparison of table 2, and what γ_last and the branches became in networks trained with L2 and without.

    Attributes:
        comparison: by test accuracy.
        shares: a row per trained network: `l2`, `seed`, `gamma_last`, `branch_share`, means over its blocks.
    """

    comparison: Comparison
    shares: pd.DataFrame

    def estimate(self, l2: str, column: str) -> Estimate:
        """One of the numbers over the seeds."""
        return replicates(self.shares[self.shares[L2] == l2].set_index("seed")[column])


def _guideline_1_checks(found: Branches) -> list[Check]:
    return [
        *role_checks(found.comparison, "gamma_last"),
        larger(
            "With L2 on it γ_last ends smaller than without.",
            found.estimate(BASELINE, "gamma_last"),
            found.estimate("gamma_last", "gamma_last"),
        ),
        larger(
            "The branches' variance is then a smaller part of their skip paths'.",
            found.estimate(BASELINE, "branch_share"),
            found.estimate("gamma_last", "branch_share"),
        ),
    ]


@artefact("gamma/guideline-1", basis="training", checks=_guideline_1_checks)
def decay_gamma_last(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_last raises the accuracy, and keeps γ_last and the branch's share of the variance small."""
    evidence = _of_column(context, effort, "gamma_last")
    comparison = evidence.facts
    shares = _shares(context, effort, comparison)
    means = shares.groupby(L2)[["gamma_last", "branch_share"]].mean().add_prefix("trained_").reset_index()
    remark = (
        f"trained_gamma_last and trained_branch_share are of {next(iter(effort.models))}, trained once more with "
        "each seed at the baseline's best learning rate: roots of mean squares, and the mean over blocks of the "
        "branch's second moment over the skip path's, on test images and their batch statistics."
    )
    return replace(
        evidence,
        facts=Branches(comparison, shares),
        measured=evidence.measured.merge(means, how="left", on=L2),
        remarks=(*evidence.remarks, remark),
    )


def _guideline_2_checks(comparison: Comparison) -> list[Check]:
    return role_checks(comparison, "gamma_down")


@artefact("gamma/guideline-2", basis="training", checks=_guideline_2_checks)
def spare_gamma_down(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_down lowers the accuracy."""
    return _of_column(context, effort, "gamma_down")


def _guideline_3_checks(comparison: Comparison) -> list[Check]:
    """The text itself names networks that gain, so that it is asked of most networks and not of each."""
    verdicts = [one.verdict for one in role_checks(comparison, "gamma_0")]
    lowered, raised = verdicts.count("holds"), verdicts.count("fails")
    open_ones = len(verdicts) - lowered - raised
    most = True if lowered > raised + open_ones else False if raised >= lowered + open_ones else None
    return [
        check(
            "L2 on gamma_0 beside the weights lowers the test accuracy of more networks than it raises.",
            most,
            lowered=lowered,
            raised=raised,
            undecided=open_ones,
        )
    ]


@artefact("gamma/guideline-3", basis="training", checks=_guideline_3_checks)
def spare_gamma_0(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_0 lowers the accuracy in most networks; in three of eight of the paper it raises it."""
    return _of_column(context, effort, "gamma_0")


def _guideline_4_checks(comparison: Comparison) -> list[Check]:
    return role_checks(comparison, "gamma_others")


@artefact("gamma/guideline-4", basis="training", checks=_guideline_4_checks)
def decay_gamma_others(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_others raises the accuracy."""
    return _of_column(context, effort, "gamma_others")


def _of_column(context: Context, effort: Effort, column: str) -> Evidence:
    """The optima with L2 on one column and without, beside the printed differences; the facts are the comparison."""
    result, comparison = roles_compared(context, effort)
    printed = {row["model"]: row for row in published_as("gamma/table-2").rows}
    shown = comparison.table[comparison.table[L2].isin([BASELINE, column])].reset_index(drop=True)
    differences = [float(printed[row["model"]].get(f"diff_{row[L2]}", 0.0)) for row in shown.to_dict("records")]
    return Evidence(
        measured=shown.assign(published_difference=differences),
        facts=comparison,
        setup=roles_setup(context, effort, result),
        draw=lambda: draw_roles(comparison, printed, column),
        remarks=remarks_of(effort, result),
        reduction=reduction_of(context, effort),
    )


def _shares(context: Context, effort: Effort, comparison: Comparison) -> pd.DataFrame:
    """A row per trained network of the first model, with L2 on γ_last and without, measured on test images.

    γ_last is the root of its mean square; the branch's share is its second moment over the skip path's.
    """
    model, wanted = next(iter(effort.models)), (BASELINE, "gamma_last")
    table = comparison.table
    best = table[(table["model"] == model) & (table[L2] == BASELINE)]["rate"].iloc[0]
    points = [
        point
        for point in roles_sweep(context, effort).points()
        if point.labels["model"] == model and point.labels[L2] in wanted and point.rate == best
    ]
    data = load_data(context.data_or(effort.data), root=context.data_root)
    batch = next(iter(data.test_batches(min(256, data.test_size))))
    rows = []
    for point, folder in zip(points, context.lab.weights([point.config for point in points]), strict=True):
        blocks = gamma_variance_table(trained_network(folder), batch.inputs)
        share = blocks["branch_second_moment"] / blocks["skip_second_moment"]
        means = {"gamma_last": blocks["gamma_last"].mean(), "branch_share": share.mean()}
        rows.append({L2: point.labels[L2], "seed": point.seed, **means})
    return pd.DataFrame(rows, columns=[L2, "seed", "gamma_last", "branch_share"])
