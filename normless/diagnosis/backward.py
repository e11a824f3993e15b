"""Exploding and vanishing gradients along the skip path."""

from __future__ import annotations

from math import log10

import numpy as np

from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Cure, Finding

NAME = "gradient along the skip path"
# With norms on the branches the gradient's norm changes with the root of the number of blocks.
MARGIN = 32.0

_THEORY = (
    "A learning rate that suits the layers at one end is far too large or too small at the other. The gradient on "
    "the skip path is at least (loss - entropy) / ‖x‖ if all later layers are positively homogeneous (Zhang et "
    "al., theorem 1); a norm after every sum divides it by the growth of that sum (Wang et al. 2022)."
)


def check_backward(examination: Examination) -> Check:
    """Compare the norms of the gradient at the outputs of all blocks."""
    table = examination.observed("backward")
    norms = table["gradient_norm"].to_numpy(float)
    if not len(norms):
        return Check(NAME, "not seen: no residual sum could be measured", asked=False)
    if not np.isfinite(norms).all():
        return Check(NAME, "not finite")
    if not norms.all():
        return Check(NAME, "zero: the classifier, or another layer after the blocks, passes none on yet", asked=False)
    largest, smallest = int(norms.argmax()), int(norms.argmin())
    ratio, blocks = float(norms[largest] / norms[smallest]), abs(largest - smallest) + 1
    summary = f"‖∂L/∂x‖ from {norms[0]:.3g} after the first block to {norms[-1]:.3g} after the last"
    if ratio <= MARGIN * blocks:
        return Check(NAME, summary)
    explodes = largest < smallest
    where = (str(table["name"].iloc[min(largest, smallest)]), str(table["name"].iloc[max(largest, smallest)]))
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
        _THEORY,
        _cure(examination),
    )
    return Check(NAME, summary, (finding,))


def _cure(examination: Examination) -> Cure:
    post_norm = any(layer.kind == "norm" for block in examination.map.blocks for layer in block.after_sum)
    wanted = ("deepnorm", "t_fixup", "skipinit") if post_norm else ("skipinit", "fixup", "nf_resnet")
    schemes = examination.fitting(wanted)
    best = schemes[0] if schemes else wanted[0]
    return Cure(f"make the skip path dominate: nl.convert(model, {best!r}, inputs)", schemes)
