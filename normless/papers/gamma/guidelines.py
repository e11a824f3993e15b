"""Guidelines 1 to 4, each on the column of table 2 that it is about."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from normless.data import load_data
from normless.papers.artefact import Context, artefact
from normless.papers.evidence import Evidence
from normless.papers.gamma.comparison import BASELINE, L2
from normless.papers.gamma.roles import (
    Effort,
    draw_roles,
    remarks_of,
    role_evidence,
    roles_setup,
    roles_sweep,
)
from normless.papers.gamma.trained import branch_shares
from normless.papers.published import published_as
from normless.papers.verdict import Check, check


@artefact("gamma/guideline-1", basis="training")
def decay_gamma_last(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_last raises the accuracy, and keeps γ_last and the branch's share of the variance small."""
    evidence = _evidence(context, effort, "gamma_last")
    shares = _shares(context, effort)
    size, share = (
        {l2: float(shares[shares[L2] == l2][column].mean()) for l2 in (BASELINE, "gamma_last")}
        for column in ("gamma_last", "branch_share")
    )
    model = next(iter(effort.models))
    further = (
        check(
            f"With L2 on it γ_last ends smaller than without, in {model}.",
            size["gamma_last"] < size[BASELINE],
            with_l2=size["gamma_last"],
            without=size[BASELINE],
        ),
        check(
            f"The branches' variance is then a smaller part of their skip paths', in {model}.",
            share["gamma_last"] < share[BASELINE],
            with_l2=share["gamma_last"],
            without=share[BASELINE],
        ),
    )
    means = shares.groupby(L2)[["gamma_last", "branch_share"]].mean().add_prefix("trained_").reset_index()
    measured = evidence.measured.merge(means, how="left", on=L2)
    remark = (
        f"trained_gamma_last and trained_branch_share are of {model} after its first replicate at the first of the "
        "learning rates: roots of mean squares, and the mean over blocks of the branch's second moment over the skip "
        "path's, on test images and their batch statistics.",
    )
    return Evidence(
        measured=measured,
        checks=(*evidence.checks, *further),
        setup=evidence.setup,
        draw=evidence.draw,
        remarks=evidence.remarks + remark,
    )


@artefact("gamma/guideline-2", basis="training")
def spare_gamma_down(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_down lowers the accuracy."""
    return _evidence(context, effort, "gamma_down")


@artefact("gamma/guideline-3", basis="training")
def spare_gamma_0(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_0 lowers the accuracy; in three of eight networks of the paper it raises it."""
    return _evidence(context, effort, "gamma_0")


@artefact("gamma/guideline-4", basis="training")
def decay_gamma_others(context: Context, *, effort: Effort) -> Evidence:
    """L2 on γ_others raises the accuracy."""
    return _evidence(context, effort, "gamma_others")


def _evidence(context: Context, effort: Effort, column: str) -> Evidence:
    result, comparison, checks = role_evidence(context, effort, column)
    printed = {row["model"]: row for row in published_as("gamma/table-2").rows}
    shown = comparison.table[comparison.table[L2].isin([BASELINE, column])].reset_index(drop=True)
    published = [float(printed[row["model"]].get(f"diff_{row[L2]}", 0.0)) for row in shown.to_dict("records")]
    return Evidence(
        measured=shown.assign(published_difference=published),
        checks=tuple(_explained(checks, [float(printed[model][f"diff_{column}"]) for model in effort.models])),
        setup=roles_setup(context, effort, result),
        draw=lambda: draw_roles(comparison, printed, column),
        remarks=remarks_of(effort, result),
    )


def _explained(checks: Sequence[Check], printed: Sequence[float]) -> list[Check]:
    """The checks with the published difference among their numbers."""
    return [
        Check(one.claim, one.verdict, {**one.numbers, "published_difference": difference})
        for one, difference in zip(checks, printed, strict=True)
    ]


def _shares(context: Context, effort: Effort) -> pd.DataFrame:
    """γ_last and the branches' share of the variance of the first network, trained with L2 on it and without."""
    wanted = (BASELINE, "gamma_last")
    points = [point for point in roles_sweep(context, effort).points() if point.labels[L2] in wanted]
    chosen = {point.labels[L2]: point.config for point in reversed(points)}
    data = load_data(context.data_or(effort.data), root=context.data_root)
    batch = next(iter(data.test_batches(min(256, data.test_size))))
    tables = [branch_shares(context, chosen[l2], batch.inputs).assign(**{L2: l2}) for l2 in wanted]
    return pd.concat(tables, ignore_index=True)
