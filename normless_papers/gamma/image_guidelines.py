"""Kim et al., guidelines 1 to 4: weight decay on the γ of one role of image networks (table 2, figure 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless.probes import probe
from normless_lab.data import load_data
from normless_lab.plots import ROLE_INKS, Ink
from normless_lab.sweeps import is_minimized
from normless_lab.train import TrainConfig, trained_network
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, larger, not_asked
from normless_papers.claims.training import LEAST, best_accuracy, chance_of, trains
from normless_papers.evidence import QUANTITY
from normless_papers.experiments.effort import Effort
from normless_papers.experiments.image_runs import PaperConfig
from normless_papers.experiments.runs import Runs, carry_out, chosen, estimate
from normless_papers.gamma.pretrained import IMAGENET, TORCHVISION, fitted, recorded
from normless_papers.plots import DIFFERENCES, beside_published
from normless_papers.published import published_as

# Steps between two records of a training from the user's weights.
RECORD_EVERY = 50
L2 = "l2"
BASELINE = "W"
POINTS = "test accuracy less that with L2 on the weights alone, points"
# Below this BLEU, translations have hardly a correct phrase.
LEAST_BLEU = 10.0
_COLUMNS = ("mean", "deviation", "n", "rate", "edge", "runs", "diverged", "chance", "failed", "difference", "error")


@dataclass(frozen=True)
class DecayComparison:
    """Runs with an axis `l2`, compared by a metric, each at its optimal learning rate."""

    runs: Runs
    metric: str

    def estimate(self, **labels: str) -> Estimate:
        """Estimate a combination at its optimal rate, by seed; NaN if it was not run or has no optimum."""
        return replace(self.runs.optimum(self.metric, **labels), name=labels[L2])

    @cached_property
    def table(self) -> pd.DataFrame:
        """Tabulate combinations as in `Runs.optima`, with the difference from the baseline's mean and its error."""
        axes, rows = self.runs.axes, []
        for row in self.runs.optima(self.metric).to_dict("records"):
            labels = {axis: row[axis] for axis in axes}
            own, base = self.estimate(**labels), self.estimate(**(labels | {L2: BASELINE}))
            difference = {"difference": 0.0, "error": 0.0}
            if row[L2] != BASELINE:
                error = larger("It is larger.", own, base).numbers["standard_error"]
                difference = {"difference": own.mean - base.mean, "error": error}
            rows.append(row | {"mean": own.mean, "deviation": own.deviation} | difference)
        return pd.DataFrame(rows)[[*axes, *_COLUMNS]]

    def better(self, claim: str, l2: str, *, wanted: bool = True, by: float = 0.0, **labels: str) -> Check:
        """Check that a choice is better by `by` than the baseline with the same labels, or worse if not `wanted`.

        Inconclusive if neither of them trained.
        """
        own, base = self.estimate(l2=l2, **labels), self.estimate(l2=BASELINE, **labels)
        pair = (own, base) if wanted != is_minimized(self.metric) else (base, own)
        compared = larger(claim, *pair, by=by)
        enough = self.trained(l2, **labels) or self.trained(BASELINE, **labels)
        return compared if enough else replace(compared, verdict="inconclusive")

    def trained(self, l2: str, **labels: str) -> bool:
        """Whether a choice trained at its best rate: a translation by its BLEU, others compared with the baseline."""
        runs = self.runs.chosen(l2=l2, **labels)
        if "bleu" in runs and runs["bleu"].notna().any():
            return float(runs.groupby("rate")["bleu"].mean().max()) >= LEAST_BLEU
        control = best_accuracy(self.runs.chosen(l2=BASELINE, **labels))
        chance = chance_of(self.runs.table)
        return trains("It trained.", best_accuracy(runs), control, chance, least=LEAST).verdict == "holds"

    def draw(
        self, inks: Mapping[str, Ink], title: str, across: str = POINTS, ax: Axes | None = None, **groups: str
    ) -> Axes:
        """Draw the differences from the baseline, with their errors."""
        rows = self.table[self.table[L2] != BASELINE].reset_index(drop=True)
        return DIFFERENCES(rows, ax, y=L2, inks=inks, title=title, x_label=across, **groups)

    def printed(self, mean: str) -> pd.DataFrame:
        """Return rows with the paper's names, its column `diff`, and `mean` as the name of the mean."""
        table = self.table.rename(columns={"mean": mean, "difference": "diff", "error": "diff_error"})
        return table.assign(l2=[label if label == BASELINE else f"W, {label}" for label in table[L2]])

    def evidence(
        self,
        draw: Callable[[], Axes],
        *,
        measured: pd.DataFrame | None = None,
        on: tuple[str, ...] = QUANTITY,
    ) -> Evidence:
        """Return the comparison as evidence."""
        table = self.table if measured is None else measured
        return self.runs.evidence(table, draw, facts=self, on=on, remarks=self.remarks)

    @property
    def remarks(self) -> list[str]:
        """Sentences on what is smaller than the paper's training, and on single runs."""
        single = "There is a single run of each, so its error is unknown and comparisons stay undecided."
        reduced = f"Not the paper's setup: {self.runs.reduction} The paper's numbers are those of full networks."
        conditions = {reduced: bool(self.runs.reduction), single: self.runs.sweeps[0].replicates == 1}
        return [sentence for sentence, holds in conditions.items() if holds]


def compared(
    context: Context,
    effort: Effort,
    name: str,
    axes: Mapping[str, Mapping[str, Mapping[str, Any]]],
    policies: Mapping[str, str],
    metric: str = "test_accuracy",
    **settings: Any,
) -> DecayComparison:
    """Sweep over axes and decay policies, which `policies` names by label of `l2`, and compare by a metric."""
    l2 = {label: {"decay_policy": policy} for label, policy in policies.items()}
    sweep = effort.sweep(context, name, {**axes, L2: l2}, **settings)
    return DecayComparison(carry_out(context, sweep, metrics=(metric,), effort=effort), metric)


# The columns of table 2, by what is decayed besides the weights: the γ of one role.
COLUMNS = MappingProxyType({"gamma_last": "last", "gamma_down": "down", "gamma_0": "stem", "gamma_others": "other"})
INKS = MappingProxyType({name: ROLE_INKS[f"γ {role}"] for name, role in COLUMNS.items()})
# Whether each column raises the accuracy according to the guidelines.
RAISES = MappingProxyType({"gamma_last": True, "gamma_down": False, "gamma_0": False, "gamma_others": True})


def _printed() -> dict[str, Mapping[str, Any]]:
    """Return the rows of table 2 by network."""
    return {row["model"]: row for row in published_as("gamma/table-2").rows}


def compared_by_role(context: Context, effort: Effort) -> DecayComparison:
    """Train every network with L2 on its weights, and on the γ of one role; axes `model` and `l2`."""
    policies = {BASELINE: "weights"} | {name: f"weights+{role}" for name, role in COLUMNS.items()}
    networks = effort.variants if context.weights is None else trained_further(context, effort, effort.variants)
    return compared(context, effort, "gamma/table-2", {"model": networks}, policies)


def trained_further(context: Context, effort: Effort, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the user's pretrained network with a classifier for the data, or torchvision's of these names."""
    weights, data = str(context.weights), load_data(effort.data_in(context), root=context.data_root)
    chosen = {name: IMAGENET.replace("resnet50", name.replace("net_", "net", 1)) for name in names}
    chosen = chosen if weights == TORCHVISION else {Path(weights).name: ""}
    folder = context.directory / "pretrained"
    return {name: {"model": str(fitted(weights, text, data, folder / name))} for name, text in chosen.items()}


def courses(context: Context, comparison: DecayComparison) -> tuple[str, ...]:
    """Train a seed of every choice again, at its best rate, and write how γ and the stream change; see `recorded`."""
    if context.weights is None:
        return ()
    best = {
        tuple(row[axis] for axis in comparison.runs.axes): row["rate"] for row in comparison.table.to_dict("records")
    }
    configs = {
        ", ".join(point.labels.values()): point.config
        for sweep in comparison.runs.sweeps
        for point in sweep.points()
        if isinstance(point.config, TrainConfig)
        and point.seed == context.seed
        and best.get(tuple(point.labels[axis] for axis in comparison.runs.axes)) == point.rate
    }
    tables = recorded(configs, context.directory / "course", RECORD_EVERY)
    for name, table in tables.items():
        table.to_csv(context.directory / f"{name}.csv", index=False)
    return (f"The files stream.csv and gammas.csv have variances and norms of γ every {RECORD_EVERY} steps.",)


def role_checks(comparison: DecayComparison, columns: Sequence[str], *, as_printed: bool = False) -> list[Check]:
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


@artefact("gamma/table-2", basis="training", checks=partial(role_checks, columns=tuple(COLUMNS), as_printed=True))
def accuracy_by_role(context: Context, *, effort: Effort) -> Evidence:
    comparison = compared_by_role(context, effort)
    draw = partial(_draw, comparison, tuple(COLUMNS))
    evidence = comparison.evidence(draw, measured=_wide(comparison, "model"), on=("model",))
    return replace(evidence, remarks=(*evidence.remarks, *courses(context, comparison)))


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


def _of_column(context: Context, effort: Effort, column: str) -> Evidence:
    """Measure the optima with L2 on one column and without, beside the printed differences."""
    comparison = compared_by_role(context, effort)
    measured = _with_printed(comparison, [BASELINE, column], "published_difference")
    return comparison.evidence(lambda: _draw(comparison, (column,)), measured=measured)


def _guideline_1_checks(facts: tuple[DecayComparison, pd.DataFrame]) -> list[Check]:
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


@artefact("gamma/guideline-1", basis="training", checks=_guideline_1_checks)
def decay_gamma_last(context: Context, *, effort: Effort) -> Evidence:
    evidence = _of_column(context, effort, "gamma_last")
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
    best = chosen(comparison.table, model=model, l2=BASELINE)["rate"].iloc[0]
    data = load_data(effort.data_in(context), root=context.data_root)
    inputs = next(iter(data.test_batches(min(256, data.test_size)))).inputs
    points = [
        point
        for point in comparison.runs.sweeps[0].points()
        if point.labels["model"] == model and point.labels[L2] in (BASELINE, "gamma_last") and point.rate == best
    ]
    rows = []
    for point, folder in zip(points, context.lab.weights([point.config for point in points]), strict=True):
        blocks = probe(trained_network(folder, PaperConfig), inputs, ["stream"]).stream
        share = blocks["branch_second_moment"] / blocks["skip_second_moment"]
        means = {"gamma_last": blocks["gamma_last"].mean(), "branch_share": share.mean()}
        rows.append({L2: point.labels[L2], "seed": point.seed, **means})
    return pd.DataFrame(rows, columns=[L2, "seed", "gamma_last", "branch_share"])


def _guideline_3_checks(comparison: DecayComparison) -> list[Check]:
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


def _guideline(number: int, column: str, checks: Callable[[DecayComparison], Sequence[Check]]) -> None:
    """Register guideline 2, 3 or 4, which is about L2 on the γ of one column of table 2."""

    @artefact(f"gamma/guideline-{number}", basis="training", checks=checks)
    def measure(context: Context, *, effort: Effort) -> Evidence:
        return _of_column(context, effort, column)


_guideline(2, "gamma_down", partial(role_checks, columns=["gamma_down"]))
_guideline(3, "gamma_0", _guideline_3_checks)
_guideline(4, "gamma_others", partial(role_checks, columns=["gamma_others"]))


def _figure_3_checks(comparison: DecayComparison) -> list[Check]:
    claim = "L2 on γ_down lowers the test accuracy at λ = {}."
    return [
        comparison.better(claim.format(strength), "gamma_down", wanted=False, **{"lambda": strength})
        for strength in comparison.table["lambda"].unique()
    ]


@artefact("gamma/figure-3", basis="training", checks=_figure_3_checks)
def cost_of_decaying_gamma_down(
    context: Context, *, effort: Effort, model: str, strengths: Sequence[float]
) -> Evidence:
    axis = {f"{strength:g}": {"weight_decay": float(strength)} for strength in strengths}
    policies = {BASELINE: "weights", "gamma_down": "weights+down"}
    if context.weights is not None:
        (own,) = trained_further(context, effort, ["resnet_152"]).values()
        model = own["model"]
    comparison = compared(context, effort, "gamma/figure-3", {"lambda": axis}, policies, model=model)
    evidence = comparison.evidence(
        lambda: comparison.draw(INKS, "L2 on γ_down at several λ", groups="lambda"),
        measured=_wide(comparison, "lambda").rename(columns={"diff_gamma_down": "difference"}),
    )
    return replace(evidence, remarks=(*evidence.remarks, *courses(context, comparison)))
