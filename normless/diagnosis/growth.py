"""Growth and decay of the signal with depth."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np

from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Cure, Finding

NAME = "signal along the skip path"
# The signal of normalized networks grows with the number n of blocks; growth up to 16 n is no finding.
MARGIN = 16.0

_GROWS = (
    "Without normalization a branch has the variance of its skip path, so every sum doubles it: 2^d after d "
    "blocks, d with a norm on the branch (De & Smith, section 2; Zhang et al., equation 1). Gradients grow "
    "alike, and only tiny learning rates are stable (Bjorck et al., section 3.4)."
)
_FADES = (
    "The classifier's input is scaled by the product of the factors of all blocks; once it is tiny, so are the "
    "differences of the logits and the gradients of the earlier layers."
)


@dataclass(frozen=True)
class _Run:
    """The consecutive blocks, numbered from 1, over which the second moment changes most."""

    first: int
    last: int
    factor: float

    @property
    def blocks(self) -> int:
        return self.last - self.first + 1

    @property
    def per_block(self) -> float:
        return float(self.factor ** (1 / self.blocks))


def check_growth(examination: Examination) -> Check:
    """Look for growth or decay of E[x²] that is exponential in depth."""
    table = examination.observed("signal")
    if table.empty:
        return Check(NAME, "not seen: no residual sum could be measured", asked=False)
    moments = np.concatenate([table["skip_second_moment"].iloc[:1], table["sum_second_moment"]]).astype(float)
    names = list(table["name"])
    if not np.isfinite(moments).all():
        first = int(np.flatnonzero(~np.isfinite(moments))[0])
        return Check(NAME, "not finite", (_overflow(examination, names, moments, first),))
    if not moments.all():
        return Check(NAME, f"zero after {names[max(int(np.flatnonzero(moments == 0)[0]) - 1, 0)]}")
    up, down = _largest_run(np.log2(moments)), _largest_run(-np.log2(moments))
    summary = (
        f"E[x²] from {moments[0]:.3g} before the first of {len(names)} blocks to {moments[-1]:.3g} after the last"
    )
    if up.factor > MARGIN * up.blocks:
        return Check(NAME, summary, (_exponential(examination, names, moments, up, grows=True),))
    if down.factor > MARGIN * down.blocks and down.factor > 2.0**10:
        return Check(NAME, summary, (_exponential(examination, names, moments, down, grows=False),))
    return Check(NAME, summary)


def _largest_run(logarithms: np.ndarray) -> _Run:
    """The run with the largest rise in a sequence of logarithms to base 2."""
    lowest = np.minimum.accumulate(logarithms)
    last = int((logarithms - lowest)[1:].argmax()) + 1
    first = int(logarithms[: last + 1].argmin()) + 1
    rise = float(logarithms[last] - logarithms[first - 1])
    return _Run(min(first, last), last, 2.0**rise)


def _exponential(e: Examination, names: list[str], moments: np.ndarray, run: _Run, *, grows: bool) -> Finding:
    where = (names[run.first - 1], names[run.last - 1])
    evidence: dict[str, float | int | str] = {
        "factor": run.factor,
        "factor_per_block": run.per_block,
        "blocks": run.blocks,
        "second_moment_before": float(moments[run.first - 1]),
        "second_moment_behind": float(moments[run.last]),
    }
    if grows:
        evidence["doubling_would_give"] = 2.0**run.blocks
        predicted = e.measured.signal.set_index("name")["predicted_sum_variance"].get(where[1], float("nan"))
        if np.isfinite(predicted):
            evidence["predicted_behind"] = float(predicted)
    return Finding(
        "growing_variance" if grows else "fading_signal",
        min(0.99, 0.7 + log2(run.factor) / 100) if grows else min(1.0, 0.3 + log2(run.factor) / 40),
        f"The signal {'grows' if grows else 'fades'} {run.per_block:.2f}-fold per block from {where[0]} to "
        f"{where[1]}: its second moment is {run.factor:.3g} times {'larger' if grows else 'smaller'} after "
        f"{run.blocks} blocks.",
        evidence,
        where,
        _GROWS if grows else _FADES,
        _cure(e),
    )


def _overflow(e: Examination, names: list[str], moments: np.ndarray, first: int) -> Finding:
    block = max(first, 1)
    before = float(moments[first - 1]) if first else float("nan")
    return Finding(
        "overflow",
        1.0,
        f"Activations are no longer finite at {names[block - 1]}, block {block} of {len(names)}.",
        {"block": block, "blocks": len(names), "second_moment_before": before},
        (names[block - 1],),
        _GROWS,
        _cure(e),
    )


def _cure(examination: Examination) -> Cure:
    schemes = examination.fitting(("skipinit", "fixup", "nf_resnet"))
    return Cure(
        "initialize every branch to zero or scale it by the number of blocks: nl.convert(model, 'skipinit', inputs)"
        + (", or another of these schemes" if len(schemes) > 1 else ""),
        schemes,
    )
