"""Plots that several artefacts share."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from normless_lab.plots import BAR_INKS, Law, Plot, new_panels, series_ink

# The place of exact agreement, below any rounding.
_EXACT = 1e-18


AGREEMENT = Plot(
    "points",
    lambda table: table.assign(
        beyond=table["deviation"] > table["tolerance"],
        **table[["deviation", "tolerance"]].clip(lower=_EXACT),
    ),
    x="deviation",
    y="quantity",
    by="beyond",
    hollow="beyond",
    beside="tolerance",
    beside_marker="|",
    inks={"False": series_ink(0), "True": series_ink(1)},
    log="x",
    title="Computed and by formula",
    x_label="largest deviation; bar: tolerance; 10⁻¹⁸: none",
)

GROWTH = Plot(
    "measured_on_predicted",
    lambda growth: growth.assign(growth=growth["growth"].where(growth["growth"] < float("inf"))),
    x="block",
    measured="growth",
    predicted="law",
    log="y",
    title="Growth at initialization",
    x_label="block; lines: the law",
    y_label="second moment / that of x₀",
)

GRADIENT_BY_CLASS = Plot(
    "histogram",
    lambda classes: classes.assign(largest=classes["mean_abs"] == classes["mean_abs"].max()),
    x="class",
    height="mean_abs",
    bars=True,
    by="largest",
    inks=BAR_INKS,
    log="y",
    title="Gradient by class",
    x_label="class",
    y_label="mean |gradient| that its logit sends back",
)


# Bars are two standard errors to each side; a difference of unknown error is hollow.
DIFFERENCES = Plot(
    "points",
    lambda table: table.assign(unknown=table["error"].isna(), bar=2 * table["error"].astype(float)),
    x="difference",
    hollow="unknown",
    error="bar",
    x_marks=[0],
)


def beside_published(table: pd.DataFrame, measured: Plot, x: str, title: str, x_label: str, **options: Any) -> Axes:
    """Draw measured rows, and below them the published rows on a separate axis, since these are of other networks.

    Args:
        table: a row per name, with the columns `x` and `published`.
        measured: the plot of the rows, and `options` of it.
    """
    printed = table[table["published"].notna()]
    upper, *lower = new_panels(1, 2 if len(printed) else 1, width=6.4, height=1.4 + 0.3 * len(table))
    measured(table, upper, x=x, title=f"{title}: measured here", x_label=x_label, **options)
    for axes in lower:
        shown = printed.assign(deviation=math.nan, error=math.nan)
        shown[x] = printed["published"]
        measured(shown, axes, x=x, title="Published, of the paper's own set-up", x_label=x_label, **options)
    return upper


# A row per method: measured with its deviation, of test errors in percent.
TEST_ERRORS = Plot(
    "points",
    lambda table: table.assign(series="measured"),
    y="name",
    by="series",
    error="deviation",
    bounds=(0, 100),
)

# A row per method: the mean at its optimal learning rate with its deviation; hollow if it did not train.
OPTIMA_BY_NAME = Plot(
    "points",
    lambda optima: optima.assign(untrained=~optima["trainable"].astype(bool)),
    x="mean",
    hollow="untrained",
    error="deviation",
    bounds=(0, None),
)

# A point per parameter of a layer: at the dotted line all summands of its gradient agree in sign.
SUMS_OF_PARAMETERS = Plot(
    "points",
    x="sum_abs",
    y="abs_sum",
    log="xy",
    laws=[Law("all of one sign", lambda sum_abs: sum_abs)],
    names="beside",
    title="Gradient of each parameter",
    x_label="Σ|d|",
    y_label="|Σd|",
)
