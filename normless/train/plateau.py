"""Whether learning has plateaued, and the doubling of epochs until it does (Bjorck et al. 2018, appendix B)."""

from __future__ import annotations

import math
from collections.abc import Sequence

WINDOW = 0.1  # share of the epochs
RELATIVE_FALL = 0.01
ABSOLUTE_FALL = 1e-3  # nats


def has_plateaued(training_losses: Sequence[float]) -> bool | None:
    """Whether the training loss no longer falls at the end of a run; None with fewer than two epochs.

    The paper names no rule; this is ours: with windows of w = ⌈epochs / 10⌉ epochs, the mean of the last
    window lies less than 1% of the mean of the window before it, or less than 0.001 nats, below that mean.

    Args:
        training_losses: mean training loss of each epoch, without the L2 term, in nats.
    """
    if len(training_losses) < 2:
        return None
    width = math.ceil(WINDOW * len(training_losses))
    last = math.fsum(training_losses[-width:]) / width
    before = math.fsum(training_losses[-2 * width : -width]) / width
    return before - last < max(RELATIVE_FALL * before, ABSOLUTE_FALL)
