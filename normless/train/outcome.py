"""How a run ends: it trained, it stayed at chance, or it diverged. None of these is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    # Whoever asks how runs ended need not wait for torch to be imported.
    from torch import Tensor

Outcome = Literal["trained", "chance", "diverged"]

SIGNIFICANCE = 1e-3


def chance_accuracy(labels: Tensor) -> float:
    """Accuracy of the best constant guess: the share of the most common of the labels [N]."""
    return float(labels.bincount().max()) / len(labels)


def finished_outcome(test_accuracy: float, labels: Tensor) -> Outcome:
    """`chance` unless the test accuracy is significantly above that of the best constant guess, else `trained`.

    One-sided binomial test: with n test examples, k of them right, and the most common class a share p of
    them, the run is `trained` if P(X ≥ k) < `SIGNIFICANCE` = 10⁻³ for X ~ Binomial(n, p).

    Args:
        test_accuracy: k / n.
        labels: of the test set, int64 [n].
    """
    from scipy.stats import binomtest

    right = round(test_accuracy * len(labels))
    test = binomtest(right, len(labels), chance_accuracy(labels), alternative="greater")
    return "trained" if test.pvalue < SIGNIFICANCE else "chance"
