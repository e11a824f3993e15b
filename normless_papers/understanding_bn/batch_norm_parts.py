"""Training with parts of batch norm (appendix H): table 2 and figure 17."""

from __future__ import annotations

import math
from itertools import pairwise

import pandas as pd
from matplotlib.axes import Axes

from normless.plots import accuracy_against_epoch, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, at_scale, check, difference, larger, quantity_table, within
from normless_papers.effort import Effort
from normless_papers.runs import chosen, estimate
from normless_papers.stated_claims import exceeds, stated
from normless_papers.trained import best_accuracy
from normless_papers.understanding_bn.best_rates import best_decade, best_rate, is_rate
from normless_papers.understanding_bn.protocol import PARTS, SUBSETS, parts_text
from normless_papers.understanding_bn.rate_search import (
    AXIS,
    INKS,
    PartsRuns,
    by_rate,
    in_symbols,
    searched,
    selected,
)

WHOLE, NORMALIZED, SCALED, CENTRED, NONE = (
    parts_text(parts) for parts in (PARTS, ("mu", "sigma2"), ("sigma2",), ("mu",), ())
)
# An accuracy within so many points of another is as good.
_AS_GOOD = 1.0


def _table_2(runs: PartsRuns) -> list[Check]:
    both = [parts_text(parts) for parts in SUBSETS if {"mu", "sigma2"} <= set(parts)]
    best = {parts: best_decade(runs.of(parts), runs.control) for parts in (NORMALIZED, SCALED, CENTRED, NONE)}
    checks = [
        at_scale(
            is_rate(f"The best rate with {in_symbols(parts)} is {rate:g}.", best_rate(runs.at_best(parts)), rate),
            runs.runs.reduction,
        )
        for parts, rate in (*((parts, 0.1) for parts in both), (SCALED, 0.01), (CENTRED, 0.003), (NONE, 1e-4))
    ]
    checks += stated(
        {
            f"The best rate with {in_symbols(better)} is larger than with {in_symbols(worse)} (log₁₀ of "
            "the rates).": exceeds(best[better], best[worse])
            for better, worse in pairwise((NORMALIZED, SCALED, CENTRED, NONE))
        }
    )
    checks += [_highest_is_best(runs, parts) for parts in (SCALED, CENTRED, NONE)]
    checks += [at_scale(_longer(runs, parts), runs.runs.reduction) for parts in (SCALED, CENTRED, NONE)]
    return checks


def _highest_is_best(runs: PartsRuns, parts: str) -> Check:
    """Whether no lower rate gives more than a point above what the highest rate gives that trains."""
    claim = (
        f"With {in_symbols(parts)} the highest rate that trains is as good as any lower one, within {_AS_GOOD:g} "
        "point of test accuracy."
    )
    own, highest = runs.of(parts), runs.highest_trained(parts)
    lower = own[own["rate"] < highest]
    if math.isnan(highest) or lower.empty:
        return check(claim, None, highest=highest)
    return larger(claim, best_accuracy(chosen(own, rate=highest)), best_accuracy(lower), by=-_AS_GOOD)


def _longer(runs: PartsRuns, parts: str) -> Check:
    return larger(
        f"With {in_symbols(parts)} learning takes more epochs to plateau than with {in_symbols(NORMALIZED)}.",
        estimate(runs.at_best(parts), "last_epoch"),
        estimate(runs.at_best(NORMALIZED), "last_epoch"),
    )


@artefact("understanding-bn/table-2", basis="training", checks=_table_2)
def best_rates_of_parts(context: Context, *, effort: Effort) -> Evidence:
    """Table 2: with μ and σ² the best rate is 0.1; with σ² or μ alone it is smaller, and smallest with neither."""
    runs = searched(context, effort, SUBSETS)
    remark = (
        "`epochs` are those of the last training where epochs are doubled until the loss plateaus, else the number "
        "that was trained."
    )
    return runs.runs.evidence(selected(runs), lambda: by_rate(runs), facts=runs, on=(AXIS,), remarks=(remark,))


def _accuracies(runs: PartsRuns) -> dict[str, Estimate]:
    """Of every subset at its best rate; runs that diverged count as chance."""
    return {str(parts): best_accuracy(runs.of(str(parts))) for parts in runs.runs.labels(AXIS)}


def _figure_17(runs: PartsRuns) -> list[Check]:
    accuracy = _accuracies(runs)
    gain = difference(accuracy[WHOLE], accuracy[NORMALIZED])
    roughly = within("The whole affine part, γ and β, adds roughly 0.6 points: 0.3 to 0.9.", gain, 0.3, 0.9)
    return [
        at_scale(roughly, runs.runs.reduction),
        *(
            larger(
                f"Without the affine part, to leave out {lost} costs more than γ and β add.",
                difference(accuracy[NORMALIZED], accuracy[remaining]),
                gain,
            )
            for lost, remaining in (("μ", SCALED), ("σ²", CENTRED))
        ),
    ]


@artefact("understanding-bn/figure-17", basis="training", checks=_figure_17)
def curves_of_parts(context: Context, *, effort: Effort) -> Evidence:
    """Figure 17: γ and β together add about 0.6 points; without μ or σ² far more is lost."""
    runs = searched(context, effort, SUBSETS)
    accuracy = _accuracies(runs)
    gain = difference(accuracy[WHOLE], accuracy[NORMALIZED])
    return runs.runs.evidence(
        quantity_table(
            {"gain_from_whole_affine_part_percent": gain}
            | {f"test accuracy with {in_symbols(parts)}": one for parts, one in accuracy.items()}
        ),
        lambda: _panels(runs),
        facts=runs,
        on=("quantity",),
        remarks=("Each subset at its best rate and epochs, by the same search as table 2.",),
    )


def _panels(runs: PartsRuns) -> Axes:
    """The affine part at the left, μ and σ² without it at the right, as the paper has them."""
    best = pd.concat([runs.at_best(str(parts)) for parts in runs.runs.labels(AXIS)])
    epochs = runs.runs.epochs
    epochs = epochs[epochs["hash"].isin(best["hash"])]
    epochs = epochs.assign(**{AXIS: epochs[AXIS].map(in_symbols)})
    axes = new_panels(1, 2)
    sides = ((SUBSETS[:4], "γ and β beside μ and σ²"), (SUBSETS[3:], "μ and σ² without γ and β"))
    for panel, (subsets, title) in zip(axes, sides, strict=True):
        names = [in_symbols(parts_text(parts)) for parts in subsets]
        accuracy_against_epoch(epochs[epochs[AXIS].isin(names)], panel, series=AXIS, inks=INKS, title=title)
    return axes[0]
