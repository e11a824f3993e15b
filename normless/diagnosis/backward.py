"""Does the gradient explode or vanish from block to block?"""

from __future__ import annotations

from math import log10

import numpy as np

from normless.diagnosis.examination import Examination
from normless.diagnosis.finding import Check, Cure, Finding

NAME = "gradient along the skip path"
# With norms on the branches the gradient's norm changes with the root of the number of blocks.
MARGIN = 32.0

_THEORY = (
    "Whatever learning rate suits the layers at one end is far too large or too small at the other. The gradient on "
    "the skip path is at least (loss - entropy) / ‖x‖ where all that follows is positively homogeneous (Zhang et "
    "al., theorem 1); a norm behind every sum divides it by the growth of that sum (Wang et al. 2022)."
)


def check_backward(examination: Examination) -> Check:
    """Compare the norms of the gradient behind the first and the last block, and between."""
    table = examination.seen(examination.backward)
    norms = table["gradient_norm"].to_numpy(float)
    if not len(norms):
        return Check(NAME, "not seen: no residual sum could be measured", asked=False)
    if not np.isfinite(norms).all():
        return Check(NAME, "not finite")
    if not norms.all():
        return Check(NAME, "zero: the classifier, or what follows the blocks, passes none on yet", asked=False)
    largest, smallest = int(norms.argmax()), int(norms.argmin())
    ratio, apart = float(norms[largest] / norms[smallest]), abs(largest - smallest) + 1
    summary = f"‖∂L/∂x‖ from {norms[0]:.3g} behind the first block to {norms[-1]:.3g} behind the last"
    if ratio <= MARGIN * apart:
        return Check(NAME, summary)
    names = list(table["name"])
    grows_back = largest < smallest
    verb = "explodes" if grows_back else "vanishes"
    finding = Finding(
        "exploding_gradient" if grows_back else "vanishing_gradient",
        min(0.75, 0.2 + log10(ratio) / 20),
        f"The gradient {verb} on its way back: its norm is {ratio:.3g} times "
        f"{'larger' if grows_back else 'smaller'} at {names[min(largest, smallest)]} than at "
        f"{names[max(largest, smallest)]}.",
        {
            "ratio": ratio,
            "blocks": apart,
            "ratio_per_block": ratio ** (1 / apart),
            "norm_behind_first": float(norms[0]),
            "norm_behind_last": float(norms[-1]),
        },
        (names[min(largest, smallest)], names[max(largest, smallest)]),
        _THEORY,
        _cure(examination),
    )
    return Check(NAME, summary, (finding,))


def _cure(examination: Examination) -> Cure:
    post_norm = any(layer.kind == "norm" for block in examination.map.blocks for layer in block.after_sum)
    wanted = ("deepnorm", "t_fixup", "skipinit") if post_norm else ("skipinit", "fixup", "nf_resnet")
    schemes = examination.possible(wanted)
    best = schemes[0] if schemes else wanted[0]
    return Cure(f"give the skip path the upper hand: nl.convert(model, {best!r}, inputs)", schemes)
