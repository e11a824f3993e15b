"""The criterion of a diverged training."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

LOSS_LIMIT = 1e3
"""In nats; no training has been observed to recover from a larger loss (Bjorck et al., section 3.4)."""


def has_diverged(loss: float, limit: float = LOSS_LIMIT) -> bool:
    """Whether a minibatch loss (nats) is not finite or above the limit."""
    return not isfinite(loss) or loss > limit


def first_diverged(losses: Iterable[float]) -> int | None:
    """Return the position of the first loss that has diverged, or None."""
    return next((index for index, loss in enumerate(losses) if has_diverged(loss)), None)
