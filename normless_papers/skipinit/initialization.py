"""Figures 2 and 5: variances and batch statistics of deep residual networks at initialization, block by block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2, pi, sqrt

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from normless.models import dense
from normless.plots import PLOTS, new_panels
from normless.probes import probe
from normless.sweeps import convert
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check, close
from normless_papers.plots import GROWTH
from normless_papers.seeded_inputs import seeded, training_batch
from normless_papers.skipinit.convolutional_network import ConvolutionalNetwork

QUANTITIES = {
    "skip_variance": "skip_variance",
    "branch_variance": "branch_variance",
    "mean_moving_variance": "norm_variance",
    "mean_squared_moving_mean": "norm_mean_square",
}
# Figure 5's laws, as factors of d; the branch's variance does not depend on it.
LAWS = {
    "skip_variance": 1.0,
    "mean_moving_variance": 1 - 1 / pi,
    "mean_squared_moving_mean": 1 / pi,
}


def _figure_2_checks(tables: Mapping[str, pd.DataFrame]) -> list[Check]:
    return [*_doubling(tables["a"]), *_linear(tables["b"]), *_convolutional(tables["c"])]


@artefact("skipinit/figure-2", basis="measurement", checks=_figure_2_checks)
def figure_2(
    context: Context,
    *,
    blocks: int,
    width: int,
    batch: int,
    conv_blocks: int,
    images: int,
    conv_width: int,
    data: str,
) -> Evidence:
    """(a) both variances double; (b) the skip path's is d, all of it seen by the norm; (c) part of it is mean."""
    examples = training_batch(context, data, images)
    with seeded(context.seed):
        vectors = torch.randn(batch, 100)
        linear = dense(blocks, width, relu=False)
        bare = probe(convert(linear, "none"), vectors, ["signal"]).signal
        normalized = probe(linear, vectors, ["signal"]).signal
        channels = examples.inputs.shape[1]
        convolutional = probe(
            ConvolutionalNetwork(conv_blocks, conv_width, channels), examples.inputs, ["signal"]
        ).signal
    tables = {"a": bare, "b": normalized, "c": convolutional}
    measured = pd.concat([_chosen(table).assign(network=name) for name, table in tables.items()])
    return Evidence(
        measured=measured[["network", *(name for name in measured.columns if name != "network")]],
        facts=tables,
        setup={
            "a, b": f"{blocks} blocks of width {width}, batch of {batch} vectors of 100 N(0, 1), LeCun normal",
            "c": f"{conv_blocks} blocks of width {conv_width}, kernels 3×3 padded by zeros, He normal",
            "images": examples.provenance,
            "draws of weights": 1,
        },
        draw=lambda: _three_panels(tables),
        remarks=(
            "The number of blocks and the size of the kernels are not printed. The table shows some blocks; checks "
            "use all. Predictions are computed from the architecture's moments and not from the draw of weights.",
        ),
    )


def _chosen(table: pd.DataFrame) -> pd.DataFrame:
    """The blocks whose number is a power of two, and the last; measured and predicted columns."""
    kept = [block for block in table["block"] if log2(block).is_integer() or block == table["block"].max()]
    names = [name for column in QUANTITIES.values() for name in (column, f"predicted_{column}")]
    return table.loc[table["block"].isin(kept), ["block", *names]]


def _doubling(table: pd.DataFrame) -> list[Check]:
    last = len(table) - 1
    checks = []
    for side in ("skip", "branch"):
        variance = table[f"{side}_variance"]
        growth = (variance.iloc[last] / variance.iloc[0]) ** (1 / last)
        checks.append(
            close(
                f"(a) The {side}'s variance doubles with every block, to 5 % in the mean.", growth, 2, relative=0.05
            )
        )
    ratio = (table["branch_variance"] / table["skip_variance"]).mean()
    checks.append(close("(a) The branch has the skip path's variance, to 5 % in the mean.", ratio, 1, relative=0.05))
    return checks


def _linear(table: pd.DataFrame) -> list[Check]:
    depth = table["block"]
    return [
        close(
            "(b) The skip path's variance is the block's number, to 5 % of the slope.",
            slope_through_zero(depth, table["skip_variance"]),
            1,
            relative=0.05,
        ),
        _deviates_by(
            "(b) The mean moving variance is the skip path's variance, to 1 % in every block.",
            table["norm_variance"] / table["skip_variance"],
            0.01,
        ),
        check(
            "(b) The mean squared moving mean is below 0.1 % of the skip path's variance in every block.",
            bool((table["norm_mean_square"] < 1e-3 * table["skip_variance"]).all()),
            largest_share=(table["norm_mean_square"] / table["skip_variance"]).max(),
        ),
        close(
            "(b) The branch's variance is 1, to 5 % in the mean.", table["branch_variance"].mean(), 1, relative=0.05
        ),
    ]


def _convolutional(table: pd.DataFrame) -> list[Check]:
    share = table["norm_variance"] / table["skip_variance"]
    return [
        _line("(c) The skip path's variance grows linearly", table["block"], table["skip_variance"]),
        check(
            "(c) The mean moving variance is below 0.9 of the skip path's variance in every block.",
            bool((share < 0.9).all()),
            smallest_share=share.min(),
            largest_share=share.max(),
        ),
        _line("(c) The mean squared moving mean grows linearly", table["block"], table["norm_mean_square"]),
    ]


def _line(claim: str, across: pd.Series, up: pd.Series) -> Check:
    x, y = across.to_numpy(float), up.to_numpy(float)
    slope, start = np.polyfit(x, y, 1)
    explained = 1 - float(np.square(y - slope * x - start).sum() / np.square(y - y.mean()).sum())
    return check(
        f"{claim}: a rising line explains 95 % of its variation over the blocks.",
        explained >= 0.95 and slope > 0,
        explained=explained,
        slope=slope,
        first=y[0],
        last=y[-1],
    )


def slope_through_zero(across: pd.Series, up: pd.Series) -> float:
    """The least-squares slope of a line through the origin."""
    x, y = across.to_numpy(float), up.to_numpy(float)
    return float(x @ y / (x @ x))


def _deviates_by(claim: str, ratio: pd.Series, tolerance: float) -> Check:
    worst = float((ratio - 1).abs().max())
    return check(claim, worst <= tolerance, worst_relative_deviation=worst, tolerance=tolerance)


def _three_panels(tables: dict[str, pd.DataFrame]) -> Axes:
    panels = new_panels(1, 3, width=4.9, height=3.2)
    GROWTH(_growth(tables["a"]), panels[0], y_label="(a) linear, no norm: variance / that of block 1")
    for name, axes, title in zip("bc", panels[1:], ("(b) linear, batch norm", "(c) ReLU, batch norm"), strict=True):
        PLOTS["signal"](tables[name], axes, title=title)
    return panels[0]


def _growth(table: pd.DataFrame) -> pd.DataFrame:
    lines = []
    for side, name in (("skip", "skip path"), ("branch", "branch end")):
        growth = table[f"{side}_variance"] / table[f"{side}_variance"].iloc[0]
        law = 2.0 ** (table["block"] - 1)
        lines.append(pd.DataFrame({"scheme": name, "block": table["block"], "growth": growth, "law": law}))
    return pd.concat(lines, ignore_index=True)


@dataclass(frozen=True)
class BatchStatisticsOfBlocks:
    """The signal table of one draw of a network of this width."""

    table: pd.DataFrame
    width: int


def _figure_5_checks(found: BatchStatisticsOfBlocks) -> list[Check]:
    # What one draw of weights makes of the rectifiers' mean strays by √(2/w), relative to its square.
    tolerances = {"mean_squared_moving_mean": 4 * sqrt(2 / found.width)}
    table = found.table
    slopes = [
        close(
            f"The {quantity.replace('_', ' ')} of block d is {factor:.3f}·d, to "
            f"{100 * tolerances.get(quantity, 0.1):.0f} % of the slope.",
            slope_through_zero(table["block"], table[QUANTITIES[quantity]]),
            factor,
            relative=tolerances.get(quantity, 0.1),
        )
        for quantity, factor in LAWS.items()
    ]
    branch = close("The branch variance is 1, to 5 % in the mean.", table["branch_variance"].mean(), 1, relative=0.05)
    return [*slopes, branch]


@artefact("skipinit/figure-5", basis="measurement", checks=_figure_5_checks)
def figure_5(context: Context, *, blocks: int, width: int, batch: int) -> Evidence:
    """Block d of a dense normalized ReLU network: variance d and 1, moving variance d(1 - 1/π), mean² d/π."""
    with seeded(context.seed):
        table = probe(dense(blocks, width), torch.randn(batch, 100), ["signal"]).signal
    chosen = _chosen(table)
    rows = []
    for quantity, column in QUANTITIES.items():
        law = LAWS[quantity] * chosen["block"] if quantity in LAWS else 1.0 + 0 * chosen["block"]
        part = {"quantity": quantity, "block": chosen["block"], "value": chosen[column], "law": law}
        rows.append(pd.DataFrame({**part, "predicted": chosen[f"predicted_{column}"]}))
    return Evidence(
        measured=pd.concat(rows, ignore_index=True),
        facts=BatchStatisticsOfBlocks(table, width),
        setup={
            "network": f"{blocks} blocks of width {width}, batch norm → ReLU → linear on every branch, He normal",
            "inputs": f"batch of {batch} vectors of 100 independent N(0, 1)",
            "draws of weights": 1,
        },
        on=("quantity",),
        draw=lambda: PLOTS["signal"](table),
        remarks=(
            "The table shows some blocks; checks use all. In one draw of weights of width w the squared mean strays "
            f"by √(2/w) of itself, {100 * sqrt(2 / width):.1f} % here, and its slope may be off by four times that.",
        ),
    )
