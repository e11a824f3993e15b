"""How a run ends: trained, at chance or diverged, none of which is an error; and whether its loss has plateaued."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    # Reading results must not import torch.
    from torch import Tensor

Outcome = Literal["trained", "chance", "diverged"]

SIGNIFICANCE = 1e-3

WINDOW = 0.1  # share of the epochs
RELATIVE_FALL = 0.01
ABSOLUTE_FALL = 1e-3  # nats


def chance_accuracy(labels: Tensor) -> float:
    """Accuracy of the best constant guess: the share of the most common of the labels [N]."""
    return float(labels.bincount().max()) / len(labels)


def finished_outcome(test_accuracy: float, labels: Tensor) -> Outcome:
    """`chance` unless the test accuracy is significantly above that of the best constant guess, else `trained`.

    One-sided binomial test: with n test labels, test accuracy k/n, and the most common class a share p of the labels,
    the run is `trained` if P(X ≥ k) < `SIGNIFICANCE` = 10⁻³ for X ~ Binomial(n, p).
    """
    from scipy.stats import binomtest

    right = round(test_accuracy * len(labels))
    test = binomtest(right, len(labels), chance_accuracy(labels), alternative="greater")
    return "trained" if test.pvalue < SIGNIFICANCE else "chance"


def has_plateaued(training_losses: Sequence[float]) -> bool | None:
    """Whether the training loss no longer falls at the end of a run; None with fewer than two epochs.

    Bjorck et al. (2018, appendix B) name no rule; this is ours: with windows of w = ⌈epochs / 10⌉ epochs, the mean of
    the last window lies less than 1% of the mean of the window before it, or less than 0.001 nats, below that mean.
    Losses are means of each epoch, without the L2 term, in nats.
    """
    if len(training_losses) < 2:
        return None
    width = math.ceil(WINDOW * len(training_losses))
    last = math.fsum(training_losses[-width:]) / width
    before = math.fsum(training_losses[-2 * width : -width]) / width
    return before - last < max(RELATIVE_FALL * before, ABSOLUTE_FALL)
