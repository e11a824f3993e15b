"""SkipInit, figures 2 and 5: variances and batch statistics of deep residual networks at initialization, by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2, pi, sqrt

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

from normless.models import conv, dense
from normless.nn import ResidualSum, initialize
from normless.probes import probe
from normless_lab.plots import PLOTS, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import DataName, Network, Seeds
from normless_papers.claims import Claim, check, close, near, over_draws
from normless_papers.networks.seeded_inputs import convert, seeded, training_batch
from normless_papers.plots import GROWTH


class ConvolutionalBlock(nn.Module):
    """x + conv(relu(norm(x))). Shapes: (B, width, H, W) to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv = conv(width, width, 3)
        self.sum = ResidualSum()

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the branch."""
        total: Tensor = self.sum(x, self.conv(self.relu(self.norm(x))))
        return total


class ConvolutionalNetwork(nn.Module):
    """conv/2 → norm → ReLU → conv/2, then blocks (De & Smith, appendix B, the network of figure 2 c).

    Weights have He's variance 2 / fan-in. The paper does not give the kernel size: here kernels are 3×3, padded with
    zeros. The network has no classifier.
    Shapes: (B, in_channels, H, W) to (B, width, ⌈H/4⌉, ⌈W/4⌉).
    """

    def __init__(self, blocks: int, width: int = 100, in_channels: int = 3) -> None:
        super().__init__()
        self.first, self.norm, self.relu = conv(in_channels, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU()
        self.second = conv(width, width, 3, 2)
        self.blocks = nn.Sequential(*(ConvolutionalBlock(width) for _ in range(blocks)))
        initialize(self, "he_fan_in")

    def forward(self, x: Tensor) -> Tensor:
        """Return the last block's output."""
        h: Tensor = self.blocks(self.second(self.relu(self.norm(self.first(x)))))
        return h

    def example_inputs(self) -> Tensor:
        """Two images of standard normal numbers, always the same."""
        return torch.randn(2, self.first.in_channels, 32, 32, generator=torch.Generator().manual_seed(0))


QUANTITIES = {
    "skip_variance": "skip_variance",
    "branch_variance": "branch_variance",
    "mean_moving_variance": "norm_variance",
    "mean_squared_moving_mean": "norm_mean_square",
}
# Figure 5's laws, as factors of d; the branch's variance is 1.
LAWS = {
    "skip_variance": 1.0,
    "mean_moving_variance": 1 - 1 / pi,
    "mean_squared_moving_mean": 1 / pi,
}


def _figure_2_checks(tables: Mapping[str, Sequence[pd.DataFrame]]) -> list[Claim]:
    """Check the signal tables of the draws of each network."""
    return [*_doubling(tables["a"][0]), *_linear(tables["b"][0]), *_convolutional(tables["c"])]


@artefact("skipinit/figure-2", basis="measurement", checks=_figure_2_checks)
def figure_2(
    context: Context,
    *,
    blocks: Network[int],
    width: Network[int],
    batch: int,
    conv_blocks: Network[int],
    images: Seeds[int],
    conv_width: int,
    draws: Seeds[int],
    data: DataName[str],
) -> Evidence:
    examples = training_batch(context, data, images)
    with seeded(context.seed):
        vectors = torch.randn(batch, 100)
        linear, channels = dense(blocks, width, relu=False), examples.inputs.shape[1]
        convolutional = [ConvolutionalNetwork(conv_blocks, conv_width, channels) for _ in range(draws)]
        drawn: dict[str, list[tuple[nn.Module, Tensor]]] = {
            "a": [(convert(linear, "none"), vectors)],
            "b": [(linear, vectors)],
            "c": [(network, examples.inputs) for network in convolutional],
        }
        tables = {name: [probe(*case, ["signal"]).signal for case in cases] for name, cases in drawn.items()}
    chosen = pd.concat([_chosen(table).assign(network=name) for name, (table, *_) in tables.items()])
    return Evidence(
        measured=chosen[["network", *(name for name in chosen.columns if name != "network")]],
        facts=tables,
        setup={
            "a, b": f"{blocks} blocks of width {width}, batch of {batch} vectors of 100 N(0, 1), LeCun normal",
            "c": f"{conv_blocks} blocks of width {conv_width}, kernels 3×3 padded by zeros, He normal",
            "images": examples.provenance,
            "draws of weights": f"1 of a and b, {draws} of c, the first of them in table and figure",
        },
        draw=lambda: _three_panels({name: table for name, (table, *_) in tables.items()}),
    )


def _chosen(table: pd.DataFrame) -> pd.DataFrame:
    """Return the measured and predicted columns of the last block and of those whose number is a power of two."""
    blocks = [block for block in table["block"] if log2(block).is_integer() or block == table["block"].max()]
    names = [name for column in QUANTITIES.values() for name in (column, f"predicted_{column}")]
    return table.loc[table["block"].isin(blocks), ["block", *names]]


def _near(claim: str, measured: float, expected: float, what: str = "on average") -> Claim:
    return close(f"{claim}, to 5 % {what}.", measured, expected, relative=0.05)


def _doubling(table: pd.DataFrame) -> list[Claim]:
    last = len(table) - 1
    growth = {
        side: (table[f"{side}_variance"].iloc[last] / table[f"{side}_variance"].iloc[0]) ** (1 / last)
        for side in ("skip", "branch")
    }
    ratio = (table["branch_variance"] / table["skip_variance"]).mean()
    return [
        *(_near(f"(a) The {side}'s variance doubles with every block", rate, 2) for side, rate in growth.items()),
        _near("(a) The branch has the skip path's variance", ratio, 1),
    ]


def _linear(table: pd.DataFrame) -> list[Claim]:
    skip, branch, variance = table["skip_variance"], table["branch_variance"], table["norm_variance"]
    worst, shares = float((variance / skip - 1).abs().max()), table["norm_mean_square"] / skip
    slope = slope_through_zero(table["block"], skip)
    is_variance = "(b) The mean moving variance is the skip path's variance, to 1 % in every block."
    is_small = "(b) The mean squared moving mean is below 0.1 % of the skip path's variance in every block."
    return [
        _near("(b) The skip path's variance is the block's number", slope, 1, "of the slope"),
        check(is_variance, worst <= 0.01, worst_relative_deviation=worst, tolerance=0.01),
        check(is_small, (shares < 1e-3).all(), largest_share=shares.max()),
        _near("(b) The branch's variance is 1", branch.mean(), 1),
    ]


def _convolutional(draws: Sequence[pd.DataFrame]) -> list[Claim]:
    """Check appendix C's sentences on figure 2(c), the moving mean "grows proportional to the depth", over draws."""
    shares = [table["norm_variance"] / table["skip_variance"] for table in draws]
    smaller = "(c) In every block of every draw the mean moving variance is smaller than the skip path's variance."
    return [
        _proportional("(c) The skip path's variance", [(table["block"], table["skip_variance"]) for table in draws]),
        check(
            smaller,
            all((share < 1).all() for share in shares),
            smallest_share=min(share.min() for share in shares),
            largest_share=max(share.max() for share in shares),
        ),
        _proportional(
            "(c) The mean squared moving mean", [(table["block"], table["norm_mean_square"]) for table in draws]
        ),
    ]


def _proportional(what: str, draws: Sequence[tuple[pd.Series, pd.Series]]) -> Claim:
    """Check that a quantity grows as the block's number, which the exponent of its growth tells from others."""
    exponents = over_draws([np.polyfit(np.log(block), np.log(value), 1)[0] for block, value in draws])
    return near(f"{what} grows in proportion to depth: as its power 1, to 0.2.", exponents, 1, 0.2)


def slope_through_zero(across: pd.Series, up: pd.Series) -> float:
    """Return the least-squares slope of a line through the origin."""
    x, y = across.to_numpy(float), up.to_numpy(float)
    return float(x @ y / (x @ x))


def _three_panels(tables: dict[str, pd.DataFrame]) -> Axes:
    panels = new_panels(1, 3, width=4.9, height=3.2)
    block, growth = tables["a"]["block"], []
    for side, name in (("skip", "skip path"), ("branch", "branch end")):
        variance = tables["a"][f"{side}_variance"]
        columns = {"scheme": name, "block": block, "growth": variance / variance.iloc[0], "law": 2.0 ** (block - 1)}
        growth.append(pd.DataFrame(columns))
    GROWTH(pd.concat(growth, ignore_index=True), panels[0], y_label="(a) linear, no norm: variance / that of block 1")
    for name, axes, title in zip("bc", panels[1:], ("(b) linear, batch norm", "(c) ReLU, batch norm"), strict=True):
        PLOTS["signal"](tables[name], axes, title=title)
    return panels[0]


def _figure_5_checks(facts: tuple[pd.DataFrame, int]) -> list[Claim]:
    """Check the signal table of one draw of a network, given its width."""
    (table, width), checks = facts, []
    for quantity, factor in LAWS.items():
        # In one draw of weights the mean square of the rectified units deviates by √(2/w) of itself.
        relative = 4 * sqrt(2 / width) if quantity == "mean_squared_moving_mean" else 0.1
        slope = slope_through_zero(table["block"], table[QUANTITIES[quantity]])
        claim = (
            f"The {quantity.replace('_', ' ')} of block d is {factor:.3f}·d, to {100 * relative:.0f} % of the slope."
        )
        checks.append(close(claim, slope, factor, relative=relative))
    return [*checks, _near("The branch variance is 1", table["branch_variance"].mean(), 1)]


@artefact("skipinit/figure-5", basis="measurement", checks=_figure_5_checks)
def figure_5(context: Context, *, blocks: Network[int], width: Network[int], batch: int) -> Evidence:
    with seeded(context.seed):
        table = probe(dense(blocks, width), torch.randn(batch, 100), ["signal"]).signal
    chosen = _chosen(table)
    rows = [
        pd.DataFrame(
            {
                "quantity": quantity,
                "block": chosen["block"],
                "value": chosen[column],
                "law": LAWS[quantity] * chosen["block"] if quantity in LAWS else 1.0,
                "predicted": chosen[f"predicted_{column}"],
            }
        )
        for quantity, column in QUANTITIES.items()
    ]
    return Evidence(
        measured=pd.concat(rows, ignore_index=True),
        facts=(table, width),
        setup={
            "network": f"{blocks} blocks of width {width}, batch norm → ReLU → linear on every branch, He normal",
            "inputs": f"batch of {batch} vectors of 100 independent N(0, 1)",
            "draws of weights": 1,
        },
        draw=lambda: PLOTS["signal"](table),
        remarks=(
            "The table shows some blocks; checks use all. In one draw of weights of width w the squared mean "
            f"deviates by √(2/w) of itself, {100 * sqrt(2 / width):.1f} % here, and its slope may deviate by four "
            "times that.",
        ),
    )
