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
from normless.papers.artefact import Context, artefact
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.verdict import Check, check, close
from normless.probes import Watcher, observe
from normless.probes.forward.covariance import covariance_table
from normless.report.probes.example_covariance import example_correlation_against_block
from normless.residual import ResidualBlock

Values = npt.NDArray[np.float64]

EXAMPLES, CHANNELS = 4, 6
# Means over draws are compared within as many of their standard errors, beside the terms in 1/b of theory.
ERRORS = 4
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
    """Skip paths and branches of networks drawn anew, each with a batch of its own.

    Returns:
        Two arrays, shape (draws, blocks, examples, channels).
    """
    found = residual_map(dense(blocks, width, in_features=width))
    skips, branches = [], []
    for _ in range(draws):
        sides = _Sides()
        observe(dense(blocks, width, in_features=width), [sides], torch.randn(batch, width), residual_map=found)
        skips.append(torch.stack(sides.skips))
        branches.append(torch.stack(sides.branches))
    return torch.stack(skips).numpy(), torch.stack(branches).numpy()


@dataclass(frozen=True)
class _Moments:
    """Means over draws and their standard errors: of the variance, and of covariances of examples and of channels."""

    mean: tuple[float, float]
    variance: tuple[float, float]
    examples: tuple[float, float]
    channels: tuple[float, float]


def _moments(one: Values, other: Values) -> _Moments:
    """Of two sides, shape (draws, examples, channels); every draw is one independent observation."""
    among = ~np.eye(one.shape[1], dtype=bool)
    apart = ~np.eye(one.shape[2], dtype=bool)
    pairs = np.einsum("djc,dkc->djk", one, other)[:, among].mean(1) / one.shape[2]
    crossed = np.einsum("djc,djl->dcl", one, other)[:, apart].mean(1) / one.shape[1]
    return _Moments(
        mean_and_error(one.mean((1, 2))), mean_and_error((one * other).mean((1, 2))), mean_and_error(pairs),
        mean_and_error(crossed),
    )  # fmt: skip


def mean_and_error(values: Values) -> tuple[float, float]:
    """The mean of independent observations and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


def matches(claim: str, found: tuple[float, float], expected: float, slack: float = 0.0) -> Check:
    """Whether a mean lies within `ERRORS` standard errors, and the slack, of what is expected."""
    mean, error = found
    return close(f"{claim}, within {ERRORS} standard errors.", mean, expected, absolute=ERRORS * error + slack)


@artefact("skipinit/equation-1", basis="measurement")
def equation_1(context: Context, *, width: int, batch: int, draws: int) -> Evidence:
    """X¹ = W⁰ B(X⁰)⁺ has mean 0, variance 1, covariance 1/π of two examples and 0 of two channels."""
    with seeded(context.seed):
        skips, _ = drawn_sides(1, width, batch, draws)
        one_draw = covariance_table(dense(10, max(width, 400)), torch.randn(batch, 100))
    found = _moments(skips[:, 0], skips[:, 0])
    # Examples behind a batch norm have correlation -1/(b - 1): theory for b → ∞ is off by about half of that.
    slack = 1 / batch
    covariance = PUBLISHED.format("X1", "X1")
    rows = [
        {"quantity": "E_X1", "of": "mean", "value": found.mean[0], "error": found.mean[1], "theory": 0.0},
        *_rows(covariance, found, level=1),
    ]
    return Evidence(
        measured=pd.DataFrame(rows),
        checks=(
            matches("The mean of X¹ is 0", found.mean, 0.0),
            matches("The variance of X¹ is 1", found.variance, 1.0),
            matches("Two examples have covariance 1/π on a channel", found.examples, 1 / pi, slack),
            matches("Two channels have covariance 0", found.channels, 0.0),
        ),
        setup={**_setup(context, width, batch, draws), "figure": "one draw, ten blocks"},
        on=("quantity",),
        draw=lambda: example_correlation_against_block(one_draw),
    )


def _rows(quantity: str, found: _Moments, level: float) -> list[dict[str, object]]:
    """j = m and i = l: a variance; j ≠ m: of two examples; i ≠ l: of two channels."""
    parts = (("j = m", found.variance, level), ("j ≠ m", found.examples, level / pi), ("i ≠ l", found.channels, 0.0))
    return [
        {"quantity": quantity, "of": name, "value": value, "error": error, "theory": theory}
        for name, (value, error), theory in parts
    ]


def _setup(context: Context, width: int, batch: int, draws: int) -> dict[str, object]:
    return {
        "network": f"dense, width {width}, {width} inputs, batch norm → ReLU → linear, He normal",
        "batch": f"{batch} vectors of N(0, 1), of which {EXAMPLES} examples and {CHANNELS} channels are kept",
        "draws": f"{draws}, weights and batch",
        "seed": context.seed,
    }


@artefact("skipinit/appendix-c-covariance", basis="measurement")
def covariance(
    context: Context, *, blocks: int, width: int, batch: int, draws: int, deep: int, deep_width: int
) -> Evidence:
    """Var(Xˡ) = l, covariance l/π of two examples, and none between a skip path and its branch."""
    with seeded(context.seed):
        skips, branches = drawn_sides(blocks, width, batch, draws)
        one_draw = covariance_table(dense(deep, deep_width), torch.randn(300, 100))
    rows: list[dict[str, object]] = []
    checks: list[Check] = []
    for index in range(blocks):
        level = index + 1
        skip = _moments(skips[:, index], skips[:, index])
        branch = _moments(branches[:, index], branches[:, index])
        crossed = _moments(branches[:, index], skips[:, index])
        for name, found, size in (("X^l", skip, level), ("branch", branch, 1.0), ("crossed", crossed, 0.0)):
            quantity = PUBLISHED.format(*(("branch", "X^l") if name == "crossed" else (name, name)))
            rows += [{"block": level, **row} for row in _rows(quantity, found, size)]
        slack = level / batch
        checks += [
            matches(f"Block {level}: the variance of X is {level}", skip.variance, level),
            matches(f"Block {level}: two examples have covariance {level}/π", skip.examples, level / pi, slack),
            matches(f"Block {level}: the branch's variance is 1", branch.variance, 1.0),
            matches(f"Block {level}: branch and skip path have covariance 0", crossed.variance, 0.0),
        ]
    spread = (one_draw["skip_correlation"] - 1 / pi).abs().max()
    checks.append(
        check(
            f"In one draw of {deep} blocks two examples have correlation 1/π on every skip path, to 0.05.",
            bool(spread <= 0.05),
            largest_difference=spread,
        )
    )
    return Evidence(
        measured=pd.DataFrame(rows),
        checks=tuple(checks),
        setup={**_setup(context, width, batch, draws), "figure": f"one draw, {deep} blocks of width {deep_width}"},
        on=("quantity",),
        draw=lambda: example_correlation_against_block(one_draw),
    )
