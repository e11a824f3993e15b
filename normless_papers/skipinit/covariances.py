"""Appendix C: what examples and channels of a normalized ReLU network have in common, averaged over draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import pi

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from normless import residual_map
from normless.models import dense
from normless.plots import PLOTS
from normless.probes import Watcher, observe, probe
from normless.residual import ResidualBlock
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, over_draws, within
from normless_papers.seeded_inputs import seeded

Values = npt.NDArray[np.float64]

EXAMPLES, CHANNELS = 8, 32
# Expectations are met to this share of the variance l; the terms in 1/b that theory leaves out are below it.
TOLERANCE = 0.05
PUBLISHED = "Cov({}_ij, {}_lm)"


@dataclass
class _Sides(Watcher):
    """A few channels of a few examples on every skip path and at every branch end."""

    skips: list[Tensor] = field(default_factory=list)
    branches: list[Tensor] = field(default_factory=list)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Keep both sides."""
        self.skips.append(skip[:EXAMPLES, :CHANNELS].double().clone())
        self.branches.append(branches[0][:EXAMPLES, :CHANNELS].double().clone())


def drawn_sides(blocks: int, width: int, batch: int, draws: int) -> tuple[Values, Values]:
    """Skip paths and branches of random networks and batches, two arrays of (draws, blocks, examples, channels)."""
    known = residual_map(dense(blocks, width, in_features=width))
    drawn = [_Sides() for _ in range(draws)]
    for sides in drawn:
        observe(dense(blocks, width, in_features=width), [sides], torch.randn(batch, width), residual_map=known)
    skips, branches = ([torch.stack(getattr(one, name)) for one in drawn] for name in ("skips", "branches"))
    return torch.stack(skips).numpy(), torch.stack(branches).numpy()


@dataclass(frozen=True)
class Moments:
    """Of some sides over draws: mean, variance, and covariances of two examples and of two channels."""

    mean: Estimate
    variance: Estimate
    examples: Estimate
    channels: Estimate


@dataclass(frozen=True)
class CovarianceFacts:
    """Moments in the mean over the blocks: of skip paths over the block's number l, of branches, and of both.

    `deepest` is of the last skip path; `correlation_off` the largest difference of two examples' correlation from 1/π
    over the blocks of one draw.
    """

    stream: Moments
    deepest: Moments
    branch: Moments
    crossed: Moments
    correlation_off: float


def moments(one: Values, other: Values) -> Moments:
    """Of two sides, shape (draws, blocks, examples, channels); every draw is one independent observation."""
    _, blocks, examples, channels = one.shape
    of_examples, of_channels = (~np.eye(size, dtype=bool) for size in (examples, channels))
    pairs = np.einsum("dnjc,dnkc->djk", one, other)[:, of_examples].mean(1) / (channels * blocks)
    crossed = np.einsum("dnjc,dnjl->dcl", one, other)[:, of_channels].mean(1) / (examples * blocks)
    means, variances = (values.mean((1, 2, 3)) for values in (one, one * other))
    return Moments(*map(over_draws, (means, variances, pairs, crossed)))


def near(claim: str, measured: Estimate, expected: float, tolerance: float = TOLERANCE) -> Check:
    """Whether a mean over draws lies within a tolerance of the expected value."""
    return within(f"{claim}, to {tolerance:g}.", measured, expected - tolerance, expected + tolerance)


def _equation_1_checks(facts: Moments) -> list[Check]:
    return [
        near("The mean of X¹ is 0", facts.mean, 0.0),
        near("The variance of X¹ is 1", facts.variance, 1.0),
        near("Two examples have covariance 1/π on a channel", facts.examples, 1 / pi),
        near("Two channels have covariance 0", facts.channels, 0.0),
    ]


@artefact("skipinit/equation-1", basis="measurement", checks=_equation_1_checks)
def equation_1(context: Context, *, width: int, batch: int, draws: int) -> Evidence:
    """X¹ = W⁰ B(X⁰)⁺ has mean 0, variance 1, covariance 1/π of two examples and 0 of two channels."""
    with seeded(context.seed):
        skips, _ = drawn_sides(1, width, batch, draws)
        one_draw = probe(dense(10, max(width, 400)), torch.randn(batch, 100), ["covariance"]).covariance
    facts = moments(skips, skips)
    mean = _row("E_X1", "mean", facts.mean, 0.0)
    rows = [mean, *_rows(PUBLISHED.format("X1", "X1"), facts, level=1)]
    return Evidence(
        measured=pd.DataFrame(rows),
        facts=facts,
        setup={**_setup(context, width, batch, draws), "figure": "one draw, ten blocks"},
        on=("quantity",),
        draw=lambda: PLOTS["covariance"](one_draw),
    )


def _row(quantity: str, of: str, one: Estimate, theory: float) -> dict[str, object]:
    return {"quantity": quantity, "of": of, "value": one.mean, "deviation": one.deviation, "theory": theory}


def _rows(quantity: str, facts: Moments, level: float) -> list[dict[str, object]]:
    """j = m and i = l: a variance; j ≠ m: of two examples; i ≠ l: of two channels."""
    parts = (("j = m", facts.variance, level), ("j ≠ m", facts.examples, level / pi), ("i ≠ l", facts.channels, 0.0))
    return [_row(quantity, *part) for part in parts]


def _setup(context: Context, width: int, batch: int, draws: int) -> dict[str, object]:
    return {
        "network": f"dense, width {width}, {width} inputs, batch norm → ReLU → linear, He normal",
        "batch": f"{batch} vectors of N(0, 1), of which {EXAMPLES} examples and {CHANNELS} channels are kept",
        "draws": f"{draws}, weights and batch",
        "deviation": "over draws",
    }


# Claims on moments: the side and the moment, and what theory has for it.
_CLAIMS = (
    ("Over l the variance of Xˡ is 1 in the mean over the blocks", "stream", "variance", 1.0),
    ("In the last block, too", "deepest", "variance", 1.0),
    ("Over l the covariance of two examples is 1/π in the mean over the blocks", "stream", "examples", 1 / pi),
    ("In the last block, too, it is 1/π", "deepest", "examples", 1 / pi),
    ("Over l the covariance of two channels is 0", "stream", "channels", 0.0),
    ("The branch's variance is 1", "branch", "variance", 1.0),
    ("Two examples have covariance 1/π on a branch's channel", "branch", "examples", 1 / pi),
    ("Branch and skip path have covariance 0 on one example", "crossed", "variance", 0.0),
    ("Branch and skip path have covariance 0 on two examples", "crossed", "examples", 0.0),
)


def _covariance_checks(facts: CovarianceFacts) -> list[Check]:
    correlation = check(
        "In one draw two examples have correlation 1/π on every skip path, to 0.05.",
        facts.correlation_off <= 0.05,
        largest_difference=facts.correlation_off,
    )
    near_theory = [
        near(claim, getattr(getattr(facts, side), moment), expected) for claim, side, moment, expected in _CLAIMS
    ]
    return [*near_theory, correlation]


@artefact("skipinit/appendix-c-covariance", basis="measurement", checks=_covariance_checks)
def covariance(
    context: Context, *, blocks: int, width: int, batch: int, draws: int, deep: int, deep_width: int
) -> Evidence:
    """Var(Xˡ) = l, covariance l/π of two examples, and none between a skip path and its branch."""
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
        facts=CovarianceFacts(
            stream=moments(scaled, scaled),
            deepest=moments(scaled[:, -1:], scaled[:, -1:]),
            branch=moments(branches, branches),
            crossed=moments(branches, scaled),
            correlation_off=float((one_draw["skip_correlation"] - 1 / pi).abs().max()),
        ),
        setup={**_setup(context, width, batch, draws), "figure": f"one draw, {deep} blocks of width {deep_width}"},
        on=("quantity",),
        draw=lambda: PLOTS["covariance"](one_draw),
    )
