"""Kim et al., guidelines 1 to 4: weight decay on the γ of one role of image networks (table 2, figure 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.probes import probe
from normless_lab.data import load_data
from normless_lab.train import trained_network
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import NetworkName
from normless_papers.claims import Claim, check, larger, not_asked
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.image_runs import PaperConfig
from normless_papers.experiments.runs import Runs, chosen, estimate
from normless_papers.gamma.course import COLUMNS, Course, with_course
from normless_papers.gamma.decay_comparison import (
    BASELINE,
    INKS,
    L2,
    POINTS,
    DecayComparison,
    compared,
    decay_training,
)
from normless_papers.gamma.transfer import (
    FURTHER,
    Recorded,
    Transfer,
    data_of,
    effort_of,
    network_for,
    networks_for,
)
from normless_papers.plots import DIFFERENCES, beside_published
from normless_papers.published import published_as

# Whether each column raises the accuracy according to the guidelines.
RAISES = MappingProxyType({"gamma_last": True, "gamma_down": False, "gamma_0": False, "gamma_others": True})


def _printed() -> dict[str, Mapping[str, Any]]:
    """Return the rows of table 2 by network."""
    return {row["model"]: row for row in published_as("gamma/table-2").rows}


def by_role(context: Context, *, effort: Effort) -> TrainingSweeps:
    """Declare every network with L2 on its weights, and on the γ of one role; axes `model` and `l2`."""
    policies = {BASELINE: "weights"} | {name: f"weights+{role}" for name, role in COLUMNS.items()}
    if context.weights is None:
        return decay_training(context, effort, "gamma/table-2", {"model": effort.variants}, policies)
    effort = effort_of(context, effort)
    data = data_of(context, effort)
    networks = networks_for(context, data, list(effort.variants))
    further = decay_training(context, effort, "gamma/table-2", {"model": networks}, policies | FURTHER)
    return with_course(further, data, context.directory / "course")


def compared_by_role(context: Context, runs: Runs) -> DecayComparison:
    """Compare runs, with the course of those of the user's networks, and of those that record their ends."""
    comparison = compared(runs)
    if context.weights is not None:
        return Transfer.of(comparison)
    recorded = runs.laboratory and runs.sweeps[0].base.get("record")
    return Recorded.of(comparison) if recorded else comparison


def role_checks(comparison: DecayComparison, columns: Sequence[str], *, as_printed: bool = False) -> list[Claim]:
    """Check for every network and column the sign that the guideline promises, or that table 2 prints."""
    checks = []
    for model in comparison.table["model"].unique():
        for column in columns:
            # The user's network has no row in the table.
            difference = float(_printed().get(model, {}).get(f"diff_{column}", math.nan))
            wanted = difference > 0 if as_printed and not math.isnan(difference) else RAISES[column]
            verb = "raises" if wanted else "lowers"
            claim = f"L2 on {column} besides the weights {verb} the test accuracy of {model}."
            outcome = comparison.better(claim, column, wanted=wanted, model=model)
            checks.append(replace(outcome, numbers={**outcome.numbers, "published_difference": difference}))
    return checks


def _table_2_checks(comparison: DecayComparison) -> list[Claim]:
    """Check the signs that table 2 prints, and of recorded networks what L2 does to γ and the variances."""
    checks = role_checks(comparison, tuple(COLUMNS), as_printed=True)
    return [*checks, *comparison.course.checks()] if isinstance(comparison, Recorded) else checks


@artefact("gamma/table-2", basis="training", checks=_table_2_checks, trains=by_role)
def accuracy_by_role(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    comparison = compared_by_role(context, runs)
    draw = partial(_draw, comparison, tuple(COLUMNS))
    evidence = comparison.evidence(draw, measured=_wide(comparison, "model"), on=("model",))
    if not isinstance(comparison, Transfer):
        return evidence
    return comparison.with_course(evidence, "L2 on γ besides the weights", context.directory)


def _wide(comparison: DecayComparison, axis: str) -> pd.DataFrame:
    """Tabulate by label of an axis the result of each choice, and its difference from the baseline."""
    rows = []
    for label, table in comparison.table.groupby(axis, sort=False):
        row: dict[str, Any] = {axis: label}
        for choice in table.to_dict("records"):
            l2 = choice[L2]
            name = l2 if l2 == BASELINE else f"W_{l2}"
            row |= {name: choice["mean"], f"{name}_deviation": choice["deviation"]}
            if l2 != BASELINE:
                row |= {f"diff_{l2}": choice["difference"], f"diff_{l2}_error": choice["error"]}
            row |= {f"{name}_rate": choice["rate"], f"{name}_n": choice["n"]}
        rows.append(row)
    return pd.DataFrame(rows)


def _draw(comparison: DecayComparison, columns: Sequence[str]) -> Axes:
    """Draw the differences of some columns from L2 on the weights alone, beside the published ones."""
    table = _with_printed(comparison, columns, "published")
    title, options = "L2 on the γ of one role", {"y": L2, "inks": INKS, "groups": "model"}
    return beside_published(table, DIFFERENCES, "difference", title, POINTS, **options)


def _with_printed(comparison: DecayComparison, choices: Sequence[str], name: str) -> pd.DataFrame:
    """Return the optima of some choices, with the printed differences from the baseline."""
    table = comparison.table[comparison.table[L2].isin(choices)].reset_index(drop=True)
    printed = [_printed().get(row["model"], {}).get(f"diff_{row[L2]}", 0.0) for row in table.to_dict("records")]
    return table.assign(**{name: [float(difference) for difference in printed]})


def _of_column(context: Context, runs: Runs, column: str) -> Evidence:
    """Measure the optima with L2 on one column and without, beside the printed differences."""
    comparison = compared_by_role(context, runs)
    measured = _with_printed(comparison, [BASELINE, column], "published_difference")
    return comparison.evidence(lambda: _draw(comparison, (column,)), measured=measured)


def _guideline_1_checks(facts: tuple[DecayComparison, pd.DataFrame]) -> list[Claim]:
    """Check the comparison of table 2, and networks trained with and without L2 on γ_last; see `_shares`."""
    comparison, shares = facts
    claims = {
        "gamma_last": "γ_last ends smaller with L2 on it than without.",
        "branch_share": "The branches' variance is then a smaller share of their skip paths'.",
    }
    return [
        *role_checks(comparison, ["gamma_last"]),
        *(
            larger(claim, *(estimate(chosen(shares, l2=l2), column, l2) for l2 in (BASELINE, "gamma_last")))
            for column, claim in claims.items()
        ),
    ]


@artefact("gamma/guideline-1", basis="training", checks=_guideline_1_checks, trains=by_role)
def decay_gamma_last(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
    evidence = _of_column(context, runs, "gamma_last")
    shares = _shares(context, effort, evidence.facts)
    means = shares.groupby(L2)[["gamma_last", "branch_share"]].mean().add_prefix("trained_").reset_index()
    return replace(
        evidence,
        facts=(evidence.facts, shares),
        measured=evidence.measured.merge(means, how="left", on=L2),
    )


def _shares(context: Context, effort: Effort, comparison: DecayComparison) -> pd.DataFrame:
    """Measure networks of the first model on test images, trained with and without L2 on γ_last.

    γ_last is the root of its mean square; the branch's share is its second moment over the skip path's.
    """
    model = next(iter(effort.variants))
    if isinstance(comparison, Recorded):
        return _recorded_shares(comparison.course, model)
    best = chosen(comparison.table, model=model, l2=BASELINE)["rate"].iloc[0]
    data = load_data(effort.data_in(context), root=context.data_root)
    inputs = next(iter(data.test_batches(min(256, data.test_size)))).inputs
    points = [
        point
        for point in comparison.runs.sweeps[0].points()
        if point.labels["model"] == model and point.labels[L2] in (BASELINE, "gamma_last") and point.rate == best
    ]
    rows = []
    laboratory = comparison.runs.laboratory
    assert laboratory is not None
    for point, folder in zip(points, laboratory.weights([point.config for point in points]), strict=True):
        blocks = probe(trained_network(folder, PaperConfig), inputs, ["stream"]).stream
        share = blocks["branch_second_moment"] / blocks["skip_second_moment"]
        means = {"gamma_last": blocks["gamma_last"].mean(), "branch_share": share.mean()}
        rows.append({L2: point.labels[L2], "seed": point.seed, **means})
    return pd.DataFrame(rows, columns=[L2, "seed", "gamma_last", "branch_share"])


def _recorded_shares(course: Course, model: str) -> pd.DataFrame:
    """Return the table of `_shares` from the records of a network's runs."""
    blocks = course.stream[(course.stream["model"] == model) & course.stream[L2].isin((BASELINE, "gamma_last"))]
    blocks = blocks.assign(branch_share=blocks["branch_second_moment"] / blocks["skip_second_moment"])
    return blocks.groupby([L2, "seed"], sort=False)[["gamma_last", "branch_share"]].mean().reset_index()


def _guideline_3_checks(comparison: DecayComparison) -> list[Claim]:
    """Check the sign that table 2 prints of each network, and that most lose accuracy: half of the eight, or more.

    "However, for γ_0, an increase in performance was observed in some models" (section 4.1).
    """
    verdicts = [outcome.verdict for outcome in role_checks(comparison, ["gamma_0"])]
    lowered, raised, undecided = (verdicts.count(verdict) for verdict in ("holds", "fails", "inconclusive"))
    most = True if lowered > raised + undecided else False if raised >= lowered + undecided else None
    claim = "L2 on gamma_0 besides the weights lowers the test accuracy of more networks than it raises."
    counted = check(claim, most, lowered=lowered, raised=raised, undecided=undecided)
    if len(verdicts) < len(_printed()) / 2:
        counted = not_asked(counted, f"{len(verdicts)} of {len(_printed())} networks are not most of them")
    return [*role_checks(comparison, ["gamma_0"], as_printed=True), counted]


def _guideline(number: int, column: str, checks: Callable[[DecayComparison], Sequence[Claim]]) -> None:
    """Register guideline 2, 3 or 4, which is about L2 on the γ of one column of table 2."""

    @artefact(f"gamma/guideline-{number}", basis="training", checks=checks, trains=by_role)
    def measure(context: Context, runs: Runs, *, effort: Effort) -> Evidence:
        return _of_column(context, runs, column)


_guideline(2, "gamma_down", partial(role_checks, columns=["gamma_down"]))
_guideline(3, "gamma_0", _guideline_3_checks)
_guideline(4, "gamma_others", partial(role_checks, columns=["gamma_others"]))


def _figure_3_checks(comparison: DecayComparison) -> list[Claim]:
    claim = "L2 on γ_down lowers the test accuracy at λ = {}."
    accuracies = [
        comparison.better(claim.format(strength), "gamma_down", wanted=False, **{"lambda": strength})
        for strength in comparison.table["lambda"].unique()
    ]
    return [*accuracies, *comparison.course.checks()] if isinstance(comparison, Recorded) else accuracies


def _at_strengths(context: Context, *, effort: Effort, model: str, strengths: Sequence[float]) -> TrainingSweeps:
    axis = {f"{strength:g}": {"weight_decay": float(strength)} for strength in strengths}
    policies = {BASELINE: "weights", "gamma_down": "weights+down"}
    if context.weights is None:
        return decay_training(context, effort, "gamma/figure-3", {"lambda": axis}, policies, model=model)
    effort = effort_of(context, effort)
    data = data_of(context, effort)
    model = network_for(context, data, "resnet_152")
    further = decay_training(context, effort, "gamma/figure-3", {"lambda": axis}, policies, model=model)
    return with_course(further, data, context.directory / "course")


@artefact("gamma/figure-3", basis="training", checks=_figure_3_checks, trains=_at_strengths)
def cost_of_decaying_gamma_down(
    context: Context, runs: Runs, *, effort: Effort, model: NetworkName[str], strengths: Sequence[float]
) -> Evidence:
    title = "L2 on γ_down at several λ"
    comparison = compared(runs) if context.weights is None else Transfer.of(compared(runs))
    evidence = comparison.evidence(
        lambda: comparison.draw(INKS, title, groups="lambda"),
        measured=_wide(comparison, "lambda").rename(columns={"diff_gamma_down": "difference"}),
    )
    if not isinstance(comparison, Transfer):
        return evidence
    return comparison.with_course(evidence, title, context.directory)
