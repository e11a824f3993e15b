"""The distribution of activations at initialization, followed from layer to layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from normless.signal.activation_gain import NODES, WEIGHTS, Values, applied

# Of the stream's distribution where it is not normal: this many equally likely values stand for it.
_VALUES = 2000
# Spread over so many values, a kink meets nodes everywhere, and Gauss-Hermite's few do.
_FEW = np.polynomial.hermite_e.hermegauss(31)


@dataclass(frozen=True)
class Stream:
    """The distribution of an element of the stream: a value drawn from `values` and an independent normal part.

    A pre-activation network's stream is the sum of its branches, normal with a variance that adds up:
    Var ← Var + α². Where an activation lies behind the sum (ResNet-V1) it is not, and the distribution is followed.

    Attributes:
        values: equally likely values of the part that is not normal.
        normal_variance: the variance of the normal part, whose mean is zero.
    """

    values: Values
    normal_variance: float

    @classmethod
    def standard(cls) -> Stream:
        """The output of a standardized layer on inputs of unit variance: standard normal."""
        return cls(np.zeros(1), 1.0)

    @property
    def variance(self) -> float:
        """The variance of an element."""
        return float(self.values.var()) + self.normal_variance

    @property
    def mean(self) -> float:
        """The mean of an element."""
        return float(self.values.mean())

    def greatest(self, count: float) -> Stream:
        """The greatest of so many independent elements, of which the distribution function is the power F^count."""
        points, weights = self._points()
        order = np.argsort(points)
        reached = np.concatenate([[0.0], np.cumsum(weights[order])]).clip(0, 1)
        return _compressed(points[order], np.diff(reached**count))

    def plus(self, variance: float) -> Stream:
        """With a branch of this variance added; its output is normal and of mean zero."""
        return Stream(self.values, self.normal_variance + variance)

    def through(self, activation: nn.Module) -> Stream:
        """Behind an elementwise activation."""
        points, weights = self._points()
        outputs = np.atleast_2d(applied(activation, points))
        return _compressed(outputs.ravel(), np.tile(weights, len(outputs)))

    def padded(self, share: float) -> Stream:
        """With channels of zeros beside it, so that its own are this share of all (option A of ResNet-V1)."""
        points, weights = self._points()
        return _compressed(np.append(points, 0.0), np.append(share * weights, 1 - share))

    def _points(self) -> tuple[Values, Values]:
        """Values that an element takes and their probabilities."""
        if self.normal_variance == 0:
            return self.values, np.full(len(self.values), 1 / len(self.values))
        nodes, weights = (NODES, WEIGHTS) if len(self.values) == 1 else _FEW
        points = self.values[:, None] + np.sqrt(self.normal_variance) * nodes
        return points.ravel(), np.tile(weights / (weights.sum() * len(self.values)), len(self.values))


def _compressed(points: Values, weights: Values) -> Stream:
    """The distribution as equally likely values: each the mean of its share of the probability."""
    order = np.argsort(points)
    # The integral of the quantile function, which a difference of turns into means: no mean is lost.
    reached = np.concatenate([[0.0], np.cumsum(weights[order])])
    integral = np.concatenate([[0.0], np.cumsum((points * weights)[order])])
    edges = np.interp(np.linspace(0, reached[-1], _VALUES + 1), reached, integral)
    return Stream(np.diff(edges) * _VALUES, 0.0)
