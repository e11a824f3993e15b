"""The signal and its gradient along the skip path: growth, decay, overflow."""

from __future__ import annotations

from math import log2, log10

import numpy as np

from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Cure, Finding

SIGNAL, GRADIENT = "signal along the skip path", "gradient along the skip path"
# The signal of normalized networks grows with the number n of blocks; growth up to 16 n is no finding.
SIGNAL_MARGIN = 16.0
# With norms on the branches the gradient's norm changes with the root of the number of blocks.
GRADIENT_MARGIN = 32.0
_UNSEEN = "not seen: no residual sum could be measured"

_GROWS = (
    "Without normalization a branch has the variance of its skip path, so every sum doubles it: 2^d after d "
    "blocks, d with a norm on the branch (De & Smith, section 2; Zhang et al., equation 1). Gradients grow "
    "alike, and only tiny learning rates are stable (Bjorck et al., section 3.4)."
)
_FADES = (
    "The classifier's input is scaled by the product of the factors of all blocks; once it is tiny, so are the "
    "differences of the logits and the gradients of the earlier layers."
)
_GRADIENT_THEORY = (
    "A learning rate that suits the layers at one end is far too large or too small at the other. The gradient on "
    "the skip path is at least (loss - entropy) / ‖x‖ if all later layers are positively homogeneous (Zhang et "
    "al., theorem 1); a norm after every sum divides it by the growth of that sum (Wang et al. 2022)."
)


def check_growth(examination: Examination) -> Check:
    """Look for growth or decay of E[x²] that is exponential in depth."""
    table = examination.observed("signal")
    if table.empty:
        return Check(SIGNAL, _UNSEEN, asked=False)
    moments = np.concatenate([table["skip_second_moment"].iloc[:1], table["sum_second_moment"]]).astype(float)
    names = list(table["name"])
    if not np.isfinite(moments).all():
        return Check(SIGNAL, "not finite", (_overflow(examination, names, moments),))
    if not moments.all():
        return Check(SIGNAL, f"zero after {names[max(int(np.flatnonzero(moments == 0)[0]) - 1, 0)]}")
    summary = (
        f"E[x²] from {moments[0]:.3g} before the first of {len(names)} blocks to {moments[-1]:.3g} after the last"
    )
    for grows in (True, False):
        first, last, factor = _largest_rise(np.log2(moments) if grows else -np.log2(moments))
        if factor > SIGNAL_MARGIN * (last - first + 1) and (grows or factor > 2.0**10):
            return Check(SIGNAL, summary, (_exponential(examination, names, moments, first, last, factor, grows),))
    return Check(SIGNAL, summary)


def _largest_rise(logarithms: np.ndarray) -> tuple[int, int, float]:
    """The blocks, numbered from 1, over which logarithms to base 2 rise most: the first, the last, and the factor."""
    lowest = np.minimum.accumulate(logarithms)
    last = int((logarithms - lowest)[1:].argmax()) + 1
    first = int(logarithms[: last + 1].argmin()) + 1
    rise = float(logarithms[last] - logarithms[first - 1])
    return min(first, last), last, 2.0**rise


def _exponential(
    e: Examination, names: list[str], moments: np.ndarray, first: int, last: int, factor: float, grows: bool
) -> Finding:
    where = (names[first - 1], names[last - 1])
    blocks = last - first + 1
    per_block = float(factor ** (1 / blocks))
    evidence: dict[str, float | int | str] = {
        "factor": factor,
        "factor_per_block": per_block,
        "blocks": blocks,
        "second_moment_before": float(moments[first - 1]),
        "second_moment_behind": float(moments[last]),
    }
    if grows:
        evidence["doubling_would_give"] = 2.0**blocks
        predicted = e.measured.signal.set_index("name")["predicted_sum_variance"].get(where[1], float("nan"))
        if np.isfinite(predicted):
            evidence["predicted_behind"] = float(predicted)
    return Finding(
        "growing_variance" if grows else "fading_signal",
        min(0.99, 0.7 + log2(factor) / 100) if grows else min(1.0, 0.3 + log2(factor) / 40),
        f"The signal {'grows' if grows else 'fades'} {per_block:.2f}-fold per block from {where[0]} to "
        f"{where[1]}: its second moment is {factor:.3g} times {'larger' if grows else 'smaller'} after "
        f"{blocks} blocks.",
        evidence,
        where,
        _GROWS if grows else _FADES,
        _cure(e),
    )


def _overflow(e: Examination, names: list[str], moments: np.ndarray) -> Finding:
    first = int(np.flatnonzero(~np.isfinite(moments))[0])
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


def check_backward(examination: Examination) -> Check:
    """Compare the norms of the gradient at the outputs of all blocks."""
    table = examination.observed("backward")
    norms = table["gradient_norm"].to_numpy(float)
    if not len(norms):
        return Check(GRADIENT, _UNSEEN, asked=False)
    if not np.isfinite(norms).all():
        return Check(GRADIENT, "not finite")
    if not norms.all():
        reason = "zero: the classifier, or another layer after the blocks, passes none on yet"
        return Check(GRADIENT, reason, asked=False)
    largest, smallest = int(norms.argmax()), int(norms.argmin())
    ratio, blocks = float(norms[largest] / norms[smallest]), abs(largest - smallest) + 1
    summary = f"‖∂L/∂x‖ from {norms[0]:.3g} after the first block to {norms[-1]:.3g} after the last"
    if ratio <= GRADIENT_MARGIN * blocks:
        return Check(GRADIENT, summary)
    explodes = largest < smallest
    where = (str(table["name"].iloc[min(largest, smallest)]), str(table["name"].iloc[max(largest, smallest)]))
    post_norm = any(layer.kind == "norm" for block in examination.map.blocks for layer in block.after_sum)
    wanted = ("deepnorm", "t_fixup", "skipinit") if post_norm else ("skipinit", "fixup", "nf_resnet")
    schemes = examination.fitting(wanted)
    best = schemes[0] if schemes else wanted[0]
    finding = Finding(
        "exploding_gradient" if explodes else "vanishing_gradient",
        min(0.75, 0.2 + log10(ratio) / 20),
        f"The gradient {'explodes' if explodes else 'vanishes'} in the backward pass: its norm is {ratio:.3g} times "
        f"{'larger' if explodes else 'smaller'} at {where[0]} than at {where[1]}.",
        {
            "ratio": ratio,
            "blocks": blocks,
            "ratio_per_block": ratio ** (1 / blocks),
            "norm_behind_first": float(norms[0]),
            "norm_behind_last": float(norms[-1]),
        },
        where,
        _GRADIENT_THEORY,
        Cure(f"make the skip path dominate: nl.convert(model, {best!r}, inputs)", schemes),
    )
    return Check(GRADIENT, summary, (finding,))
