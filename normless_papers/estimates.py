"""Numbers of several draws of a network as estimates, and claims about every draw or about a range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from normless_papers.verdict import Check, Estimate, above_zero, check

# Top-1 accuracy of ResNet-50 on ImageNet over five seeds: 23.60 ± 0.12 % error (Goyal et al. 2017, table 1).
IMAGENET_DEVIATION = 0.12


def over_draws(values: Iterable[float] | npt.NDArray[np.float64]) -> Estimate:
    """Mean and sample standard deviation over independent draws; of a single draw the deviation is not known, NaN.

    Raises:
        ValueError: there is no draw.
    """
    held = np.asarray(list(values), dtype=float)
    if not len(held):
        raise ValueError("An estimate needs at least one draw, got none.")
    return Estimate(float(held.mean()), float(held.std(ddof=1)) if len(held) > 1 else math.nan, len(held))


def decades_over_draws(values: Iterable[float] | npt.NDArray[np.float64]) -> Estimate:
    """`over_draws` of log₁₀: for ratios and sizes that differ from draw to draw by orders of magnitude.

    A value that is 0 gives -∞ and one below it NaN, which decide no claim in its favour.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = np.log10(np.asarray(list(values), dtype=float))
        return over_draws(logarithms)


def single_run(value: float) -> Estimate:
    """A single run of ResNet-50 on ImageNet, in percent, with the deviation that such runs are known to have.

    Its error is `IMAGENET_DEVIATION` points; a comparison of two runs is decided where they differ by more than
    1.96 · √2 · 0.12 = 0.33 points.
    """
    return Estimate(value, IMAGENET_DEVIATION, 1)


def difference(first: Estimate, second: Estimate) -> Estimate:
    """The estimate of first - second: of the differences of replicates with the same seeds, else of the means.

    Of means the deviation is √(s₁² + s₂²) and n the smaller number of replicates.
    """
    seeds = sorted(first.by_seed)
    if seeds and seeds == sorted(second.by_seed):
        by_seed = {seed: first.by_seed[seed] - second.by_seed[seed] for seed in seeds}
        return replace(over_draws(by_seed.values()), by_seed=by_seed)
    spread = math.hypot(first.deviation, second.deviation)
    return Estimate(first.mean - second.mean, spread, min(first.n, second.n))


def within(claim: str, estimate: Estimate, low: float, high: float) -> Check:
    """low ≤ mean ≤ high, told from the nearer bound by Student's t at 95 %; inconclusive where it cannot be told.

    An exact estimate (deviation 0) is always decided, one of unknown error (NaN) never is.

    Raises:
        ValueError: the bounds are the wrong way round.
    """
    if low > high:
        raise ValueError(
            f"The range of the claim {claim!r} is from {low} to {high}: the bounds are the wrong way round."
        )
    error = estimate.deviation / math.sqrt(estimate.n)
    numbers = {"measured": estimate.mean, "low": low, "high": high, "standard_error": error}
    inside = min(estimate.mean - low, high - estimate.mean)
    # A bound itself is within the range, where nothing is uncertain.
    holds = True if inside == error == 0 else above_zero(inside, [error**2], [estimate.n])
    return check(claim, holds, **numbers)


def in_every(claim: str, draws: Iterable[bool], **numbers: float) -> Check:
    """Whether something was so in every draw: fails from half of them on downwards, inconclusive between.

    Raises:
        ValueError: there is no draw.
    """
    flags = [bool(draw) for draw in draws]
    if not flags:
        raise ValueError(f"The claim {claim!r} is about every draw, and there is none.")
    share = sum(flags) / len(flags)
    holds = True if share == 1 else False if share <= 0.5 else None
    return check(claim, holds, share_of_draws=share, draws=len(flags), **numbers)


def qualified(checks: Iterable[Check], reason: str) -> tuple[Check, ...]:
    """Failed checks with why the smaller set-up may be to blame, failed all the same; the others as they are.

    Args:
        checks: of a claim.
        reason: a sentence; empty where the set-up is the paper's.
    """
    return tuple(
        replace(one, claim=f"{one.claim} Smaller than the paper’s set-up: {reason}")
        if reason and one.verdict == "fails"
        else one
        for one in checks
    )


def quantity_table(quantities: Mapping[str, Estimate | float]) -> pd.DataFrame:
    """A row per quantity: `quantity`, `value` (the mean), `deviation` over draws (0 if exact) and `n` draws."""
    held = {name: one if isinstance(one, Estimate) else Estimate(float(one)) for name, one in quantities.items()}
    rows = [
        {"quantity": name, "value": one.mean, "deviation": one.deviation, "n": one.n} for name, one in held.items()
    ]
    return pd.DataFrame(rows, columns=["quantity", "value", "deviation", "n"])
