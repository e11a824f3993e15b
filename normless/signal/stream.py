"""The distribution of activations at initialization, where it is not normal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from normless.signal.quadrature import Values, applied

# A distribution that is not normal is stored as this many equally likely values.
_VALUES = 2000
# Around so many values a few nodes suffice: a kink falls between nodes of different values.
_FEW = np.polynomial.hermite_e.hermegauss(31)
# Around a single value many are needed: 20 in every [k, k + 1], since most kinks lie at whole numbers.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_MANY = (np.arange(-12.0, 12.0)[:, None] + (_NODES + 1) / 2).ravel()
_MANY_WEIGHTS = np.tile(_WEIGHTS, 24) * np.exp(-(_MANY**2) / 2)


@dataclass(frozen=True)
class Stream:
    """The distribution of an element of the stream: a value drawn from `values` and an independent normal part.

    A pre-activation network's stream is the sum of its branches, normal with a variance that adds up:
    Var ← Var + α². Where an activation follows the sum (ResNet-V1) it is not normal, and the distribution is tracked.

    Attributes:
        values: equally likely values of the part that is not normal.
        normal_variance: the variance of the normal part, of mean zero.
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

    def plus(self, variance: float) -> Stream:
        """With a branch of this variance added; its output is normal and of mean zero."""
        return Stream(self.values, self.normal_variance + variance)

    def through(self, activation: nn.Module) -> Stream:
        """After an elementwise activation."""
        points, weights = self._points()
        outputs = np.atleast_2d(applied(activation, points))
        return _compressed(outputs.ravel(), np.tile(weights, len(outputs)))

    def padded(self, share: float) -> Stream:
        """With channels of zeros, such that the others are this share of all (option A of ResNet-V1)."""
        points, weights = self._points()
        return _compressed(np.append(points, 0.0), np.append(share * weights, 1 - share))

    def _points(self) -> tuple[Values, Values]:
        """Values that an element takes and their probabilities."""
        if self.normal_variance == 0:
            return self.values, np.full(len(self.values), 1 / len(self.values))
        nodes, weights = (_MANY, _MANY_WEIGHTS) if len(self.values) == 1 else _FEW
        points = self.values[:, None] + np.sqrt(self.normal_variance) * nodes
        return points.ravel(), np.tile(weights / (weights.sum() * len(self.values)), len(self.values))


def _compressed(points: Values, weights: Values) -> Stream:
    """The distribution as equally likely values: each the mean of its share of the probability."""
    order = np.argsort(points)
    # Differences of the integral of the quantile function are means, so the mean of all is exact.
    reached = np.concatenate([[0.0], np.cumsum(weights[order])])
    integral = np.concatenate([[0.0], np.cumsum((points * weights)[order])])
    edges = np.interp(np.linspace(0, reached[-1], _VALUES + 1), reached, integral)
    return Stream(np.diff(edges) * _VALUES, 0.0)
