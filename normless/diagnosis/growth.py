"""Does the signal grow or fade with depth?"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np

from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Cure, Finding

NAME = "signal along the skip path"
# Normalized networks grow with the number n of blocks, and need not be mended; n-fold growth has a margin of 16.
MARGIN = 16.0

_GROWS = (
    "Without normalization a branch carries the variance of its skip path, so every sum doubles it: 2^d behind d "
    "blocks, where a norm on the branch makes it d (De & Smith, section 2; Zhang et al., equation 1). Gradients grow "
    "alike, and only tiny learning rates stay stable (Bjorck et al., section 3.4)."
)
_FADES = (
    "What reaches the classifier is the product of the factors of all blocks; once it is tiny, so are the logits' "
    "differences and the gradients of what lies before."
)


@dataclass(frozen=True)
class _Run:
    """The stretch of blocks over which the second moment changes most: before block `first`, behind block `last`."""

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
    """Look for growth or decay of E[x²] that is exponential rather than that of a normalized network."""
    table = examination.seen(examination.signal)
    if table.empty:
        return Check(NAME, "not seen: no residual sum could be measured", asked=False)
    moments = np.concatenate([table["skip_second_moment"].iloc[:1], table["sum_second_moment"]]).astype(float)
    names = list(table["name"])
    if not np.isfinite(moments).all():
        first = int(np.flatnonzero(~np.isfinite(moments))[0])
        return Check(NAME, "not finite", (_overflow(examination, names, moments, first),))
    if not moments.all():
        return Check(NAME, f"zero behind {names[max(int(np.flatnonzero(moments == 0)[0]) - 1, 0)]}")
    up, down = _largest_run(np.log2(moments)), _largest_run(-np.log2(moments))
    summary = (
        f"E[x²] from {moments[0]:.3g} before the first of {len(names)} blocks to {moments[-1]:.3g} behind the last"
    )
    if up.factor > MARGIN * up.blocks:
        return Check(NAME, summary, (_growing(examination, names, moments, up),))
    if down.factor > MARGIN * down.blocks and down.factor > 2.0**10:
        return Check(NAME, summary, (_fading(examination, names, moments, down),))
    return Check(NAME, summary)


def _largest_run(logarithms: np.ndarray) -> _Run:
    """The stretch with the largest rise of a sequence of logarithms to base 2."""
    lowest = np.minimum.accumulate(logarithms)
    last = int((logarithms - lowest)[1:].argmax()) + 1
    first = int(logarithms[: last + 1].argmin()) + 1
    rise = float(logarithms[last] - logarithms[first - 1])
    return _Run(min(first, last), last, 2.0**rise)


def _growing(e: Examination, names: list[str], moments: np.ndarray, run: _Run) -> Finding:
    predicted = e.signal.set_index("name")["predicted_sum_variance"].get(names[run.last - 1], float("nan"))
    beside: dict[str, float | int | str] = {"doubling_would_give": 2.0**run.blocks}
    if np.isfinite(predicted):
        beside["predicted_behind"] = float(predicted)
    return Finding(
        "growing_variance",
        min(0.99, 0.7 + log2(run.factor) / 100),
        f"The signal grows {_in_words(names, run, 'larger')}",
        _evidence(moments, run) | beside,
        (names[run.first - 1], names[run.last - 1]),
        _GROWS,
        _cure(e),
    )


def _fading(e: Examination, names: list[str], moments: np.ndarray, run: _Run) -> Finding:
    return Finding(
        "fading_signal",
        min(1.0, 0.3 + log2(run.factor) / 40),
        f"The signal fades {_in_words(names, run, 'smaller')}",
        _evidence(moments, run),
        (names[run.first - 1], names[run.last - 1]),
        _FADES,
        _cure(e),
    )


def _in_words(names: list[str], run: _Run, than: str) -> str:
    return (
        f"{run.per_block:.2f}-fold per block from {names[run.first - 1]} to {names[run.last - 1]}: its second moment "
        f"is {run.factor:.3g} times {than} behind {run.blocks} blocks."
    )


def _evidence(moments: np.ndarray, run: _Run) -> dict[str, float | int | str]:
    return {
        "factor": run.factor,
        "factor_per_block": run.per_block,
        "blocks": run.blocks,
        "second_moment_before": float(moments[run.first - 1]),
        "second_moment_behind": float(moments[run.last]),
    }


def _overflow(e: Examination, names: list[str], moments: np.ndarray, first: int) -> Finding:
    where = names[max(first - 1, 0)]
    return Finding(
        "overflow",
        1.0,
        f"Activations are no longer finite at {where}, block {max(first, 1)} of {len(names)}.",
        {
            "block": max(first, 1),
            "blocks": len(names),
            "second_moment_before": float(moments[first - 1]) if first else float("nan"),
        },
        (where,),
        _GROWS,
        _cure(e),
    )


def _cure(examination: Examination) -> Cure:
    schemes = examination.possible(("skipinit", "fixup", "nf_resnet"))
    return Cure(
        "start every branch at zero or scale it by the number of blocks: nl.convert(model, 'skipinit', inputs)"
        + (", or another of these schemes" if len(schemes) > 1 else ""),
        schemes,
    )
