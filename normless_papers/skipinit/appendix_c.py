"""SkipInit, appendix C: covariances and batch statistics of a normalized ReLU network at initialization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import pi

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from matplotlib.axes import Axes
from torch import Tensor

from normless import residual_map
from normless.models import dense
from normless.probes import Watcher, observe, probe
from normless.residual import ResidualBlock
from normless_lab.plots import PLOTS, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network, Seeds
from normless_papers.claims import Claim, Estimate, beyond, larger, near, over_draws
from normless_papers.networks.seeded_inputs import seeded

Values = npt.NDArray[np.float64]

EXAMPLES, CHANNELS = 8, 32
PUBLISHED = "Cov({}_ij, {}_lm)"


@dataclass
class _Sides(Watcher):
    """A few channels of a few examples on every skip path and at every branch end."""

    skips: list[Tensor] = field(default_factory=list)
    branches: list[Tensor] = field(default_factory=list)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Record both sides."""
        self.skips.append(skip[:EXAMPLES, :CHANNELS].double().clone())
        self.branches.append(branches[0][:EXAMPLES, :CHANNELS].double().clone())


def drawn_sides(blocks: int, width: int, batch: int, draws: int) -> tuple[Values, Values]:
    """Draw networks and batches; return skip paths and branches, arrays of (draws, blocks, examples, channels)."""
    known = residual_map(dense(blocks, width, in_features=width))
    drawn = [_Sides() for _ in range(draws)]
    for sides in drawn:
        observe(dense(blocks, width, in_features=width), [sides], torch.randn(batch, width), residual_map=known)
    skips, branches = ([torch.stack(getattr(sides, name)) for sides in drawn] for name in ("skips", "branches"))
    return torch.stack(skips).numpy(), torch.stack(branches).numpy()


Moments = Mapping[str, Estimate]
"""Estimates over draws: `mean`, `variance`, and covariances of two `examples` and of two `channels`."""


def moments(first: Values, second: Values) -> Moments:
    """Estimate the moments of two sides, shape (draws, blocks, examples, channels); draws are independent."""
    _, blocks, examples, channels = first.shape
    of_examples, of_channels = (~np.eye(size, dtype=bool) for size in (examples, channels))
    pairs = np.einsum("dnjc,dnkc->djk", first, second)[:, of_examples].mean(1) / (channels * blocks)
    crossed = np.einsum("dnjc,dnjl->dcl", first, second)[:, of_channels].mean(1) / (examples * blocks)
    means, variances = (values.mean((1, 2, 3)) for values in (first, first * second))
    measured = {"mean": means, "variance": variances, "examples": pairs, "channels": crossed}
    return {name: over_draws(values) for name, values in measured.items()}


@artefact(
    "skipinit/equation-1",
    basis="measurement",
)
def equation_1(context: Context, *, width: Network[int], batch: int, draws: Seeds[int]) -> Evidence:
    with seeded(context.seed):
        skips, _ = drawn_sides(1, width, batch, draws)
        one_draw = probe(dense(10, max(width, 400)), torch.randn(batch, 100), ["covariance"]).covariance
    facts = moments(skips, skips)
    mean = _row("E_X1", "mean", facts["mean"], 0.0)
    rows = [mean, *_rows(PUBLISHED.format("X1", "X1"), facts, level=1)]
    return Evidence(
        measured=pd.DataFrame(rows),
        facts=facts,
        setup={**_setup(context, width, batch, draws), "figure": "one draw, ten blocks"},
        draw=lambda: PLOTS["covariance"](one_draw),
    )


def _row(quantity: str, of: str, value: Estimate, theory: float) -> dict[str, object]:
    return {"quantity": quantity, "of": of, "value": value.mean, "deviation": value.deviation, "theory": theory}


def _rows(quantity: str, facts: Moments, level: float) -> list[dict[str, object]]:
    """Make rows of a variance (j = m, i = l) and covariances of two examples (j ≠ m) and two channels (i ≠ l)."""
    parts = (
        ("j = m", facts["variance"], level),
        ("j ≠ m", facts["examples"], level / pi),
        ("i ≠ l", facts["channels"], 0.0),
    )
    return [_row(quantity, *part) for part in parts]


def _setup(context: Context, width: int, batch: int, draws: int) -> dict[str, object]:
    return {
        "network": f"dense, width {width}, {width} inputs, batch norm → ReLU → linear, He normal",
        "batch": f"{batch} vectors of N(0, 1), of which {EXAMPLES} examples and {CHANNELS} channels are kept",
        "draws": f"{draws}, weights and batch",
        "deviation": "over draws",
    }


@artefact(
    "skipinit/appendix-c-covariance",
    basis="measurement",
)
def covariance(
    context: Context,
    *,
    blocks: Network[int],
    width: Network[int],
    batch: int,
    draws: Seeds[int],
    deep: Network[int],
    deep_width: Network[int],
) -> Evidence:
    with seeded(context.seed):
        skips, branches = drawn_sides(blocks, width, batch, draws)
        one_draw = probe(dense(deep, deep_width), torch.randn(300, 100), ["covariance"]).covariance
    rows: list[dict[str, object]] = []
    for index in range(blocks):
        skip, branch = (side[:, index : index + 1] for side in (skips, branches))
        for names, sides, level in (
            (("X^l", "X^l"), (skip, skip), index + 1),
            (("branch", "branch"), (branch, branch), 1.0),
            (("branch", "X^l"), (branch, skip), 0.0),
        ):
            named = _rows(PUBLISHED.format(*names), moments(*sides), level)
            rows += [{"block": index + 1, **row} for row in named]
    roots = np.sqrt(np.arange(1, blocks + 1))[:, None, None]
    scaled = skips / roots
    return Evidence(
        measured=pd.DataFrame(rows),
        facts={
            f"{side} {name}": moment
            for side, both in {
                # Divided by the block's number l, and the last of them.
                "stream": (scaled, scaled),
                "deepest": (scaled[:, -1:], scaled[:, -1:]),
                "branch": (branches, branches),
                "crossed": (branches, scaled),
            }.items()
            for name, moment in moments(*both).items()
        }
        | {"largest_difference": float((one_draw["skip_correlation"] - 1 / pi).abs().max())},
        setup={**_setup(context, width, batch, draws), "figure": f"one draw, {deep} blocks of width {deep_width}"},
        draw=lambda: PLOTS["covariance"](one_draw),
    )


MEAN_SQUARE = "E[(mu_c^l)^2]"
VARIANCE = "E[(sigma_c^l)^2]"
# The text derives both for b ≫ 1; from this size on the error of its limits is below the tolerance.
LARGE_BATCH = 64
_RELATIVE = 0.05


def _statistics_checks(facts: Mapping[int, tuple[Estimate, Estimate, Estimate]]) -> list[Claim]:
    """Check μ², σ² and their sum by batch size, divided by l and averaged over channels and blocks, over draws.

    Below `LARGE_BATCH` the printed term of μ² in 1/b is beyond the appendix, which is about b ≫ 1.
    """

    def close_to(claim: str, measured: Estimate, value: float) -> Claim:
        claim = f"Batch size {batch}: {claim}, to {100 * _RELATIVE:g} %."
        return near(claim, measured, value, _RELATIVE * value)

    checks = []
    for batch, (mean_square, variance, total) in facts.items():
        expected = formulas(batch)
        checks.append(close_to("the sum of both is l", total, 1.0))
        if batch >= LARGE_BATCH:
            checks.append(close_to(f"μ² is 1/π = {1 / pi:.4f} of l", mean_square, 1 / pi))
            checks.append(close_to(f"σ² is {expected[1]:.4f} of l", variance, expected[1]))
        else:
            claim = f"μ² with its term in 1/b is {expected[0]:.4f} of l"
            checks.append(beyond(close_to(claim, mean_square, expected[0])))
    smallest, largest = min(facts), max(facts)
    falls = f"μ² falls towards l/π as the batch grows: it is larger at {smallest} than at {largest}."
    rises = f"σ² rises towards l(1 - 1/π): it is larger at {largest} than at {smallest}."
    return [
        *checks,
        larger(falls, facts[smallest][0], facts[largest][0]),
        larger(rises, facts[largest][1], facts[smallest][1]),
    ]


def formulas(batch: int) -> tuple[float, float]:
    """Return μ²/l and σ²/l for a batch of b examples: 1/π + (π - 1)/(πb) and (1 - 1/π)(1 - 1/b)."""
    return 1 / pi + (pi - 1) / (pi * batch), (1 - 1 / pi) * (1 - 1 / batch)


@artefact("skipinit/appendix-c-batch-statistics", basis="measurement", checks=_statistics_checks)
def batch_statistics(
    context: Context, *, blocks: Network[int], width: Network[int], batches: Seeds[tuple[int, ...]], draws: Seeds[int]
) -> Evidence:
    rows, facts, tables = [], {}, {}
    for batch in batches:
        with seeded(context.seed):
            drawn = [
                probe(dense(blocks, width, in_features=width), torch.randn(batch, width), ["signal"]).signal
                for _ in range(draws)
            ]
        tables[batch] = drawn[0]
        names = ["norm_mean_square", "norm_variance"]
        # A block's statistics grow with its number; their quotient is a constant, the same for every block and draw.
        scaled = np.stack([table[names].div(table["block"], axis=0).to_numpy(float) for table in drawn])
        per_draw = scaled.mean(1)
        facts[batch] = (over_draws(per_draw[:, 0]), over_draws(per_draw[:, 1]), over_draws(per_draw.sum(1)))
        for quantity, value, formula in zip((MEAN_SQUARE, VARIANCE), facts[batch][:2], formulas(batch), strict=True):
            rows.append((quantity, batch, value.mean, value.deviation, formula))
    return Evidence(
        measured=pd.DataFrame(rows, columns=["quantity", "batch", "value", "deviation", "theory"]),
        facts=facts,
        setup={
            "network": f"dense, {blocks} blocks, width and inputs {width}, batch norm → ReLU → linear, He normal",
            "draws": f"{draws} for each batch size",
            "value": "over l, averaged over channels, blocks and draws",
        },
        draw=lambda: _panels(tables),
        remarks=(
            f"The text derives both for b ≫ 1, which is checked from {LARGE_BATCH} on, and prints a term in 1/b of "
            "μ², which is checked below. The term treats the examples after a batch norm as "
            "independent. They are not: their mean is 0 and their variance one by construction, so two of them have "
            "correlation -1/(b - 1), and μ² is l(1/π + 0.18/b) to first order, 0.342·l at b = 8, for which the "
            "formula gives 0.404·l.",
        ),
    )


def _panels(tables: dict[int, pd.DataFrame]) -> Axes:
    panels = new_panels(1, 2, width=4.9, height=3.2)
    for axes, batch in zip(panels, (max(tables), min(tables)), strict=True):
        PLOTS["signal"](tables[batch], axes, title=f"Batch size {batch}")
    return panels[0]
