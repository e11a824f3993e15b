"""Mean and variance of the channels of an activation, followed from layer to layer."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from math import sqrt

import numpy as np
import torch
from torch import Tensor, nn
from torch.special import ndtr

from normless.errors import MissingValuesError
from normless.signal.stream import Stream

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(63)
_RELU = nn.ReLU()


@dataclass(frozen=True)
class Channels:
    """What is known of an activation: the mean and variance of every channel over examples and positions.

    Channels differ: by the weights that made each, and in a network without norms for good. A convex activation gives
    more where they do. float64, shape (C,), or (1,) where channels are not told apart.

    Attributes:
        mean, variance: of each channel, taken to be normal where an activation reads it.
        rectified: whether it is a ReLU's output, which another leaves as it is.
    """

    mean: Tensor
    variance: Tensor
    rectified: bool = False

    @classmethod
    def normal(cls, second: float = 1.0) -> Channels:
        """One channel of mean zero and this second moment."""
        return cls(torch.zeros(1, dtype=torch.float64), torch.full((1,), second, dtype=torch.float64))

    @property
    def second(self) -> float:
        """The second moment, averaged over channels."""
        return float((self.mean.square() + self.variance).mean())

    def scaled(self, factor: float) -> Channels:
        """Times a factor above zero."""
        return Channels(self.mean * factor, self.variance * factor**2, self.rectified)

    def alone(self) -> Channels:
        """Channels not told apart: the mean of all, and their variance about it."""
        mean = self.mean.mean(0, keepdim=True)
        variance = self.variance.mean(0, keepdim=True) + self.mean.var(correction=0)
        return Channels(mean, variance, self.rectified)

    def of(self, count: int) -> Channels:
        """As so many channels; where there is another number of them, all the same."""
        if len(self.mean) == count:
            return self
        one = self.alone()
        return Channels(one.mean.expand(count), one.variance.expand(count), one.rectified)

    def added(self, other: Channels) -> Channels:
        """With an independent one added."""
        count = max(len(self.mean), len(other.mean))
        one, two = self.of(count), other.of(count)
        return Channels(one.mean + two.mean, one.variance + two.variance)

    def gated(self, factor: Channels) -> Channels:
        """Times an independent factor, each channel by its own where there are as many."""
        by = factor.of(len(self.mean))
        mean = self.mean * by.mean
        second = (self.mean.square() + self.variance) * (by.mean.square() + by.variance)
        return Channels(mean, (second - mean.square()).clamp_min(0))

    def averaged(self, count: float) -> Channels:
        """The mean of so many independent elements: the same mean, 1/count of the variance."""
        return Channels(self.mean, self.variance / count)

    def greatest(self, count: float) -> Channels:
        """The greatest of so many independent elements."""
        mean, variance, old = _greatest(count, self.rectified)
        if not self.rectified:
            return Channels(self.mean + mean * self.variance.sqrt(), self.variance * variance)
        ratio = (mean**2 + variance) / old
        second = (self.mean.square() + self.variance) * ratio
        share = mean**2 / (mean**2 + variance)
        return Channels((second * share).sqrt(), second * (1 - share), rectified=True)

    def padded(self, share: float) -> Channels:
        """With channels of zeros beside it, so that its own are this share of all."""
        zeros = torch.zeros(max(round(len(self.mean) * (1 / share - 1)), 0), dtype=torch.float64)
        if not len(zeros):
            mean, second = self.mean * share, (self.mean.square() + self.variance) * share
            return Channels(mean, second - mean.square(), self.rectified)
        return Channels(torch.cat([self.mean, zeros]), torch.cat([self.variance, zeros]), self.rectified)

    @torch.no_grad()
    def through(self, activation: nn.Module) -> Channels:
        """Behind an elementwise activation, by quadrature; exact for ReLU.

        Raises:
            MissingValuesError: its parameters have no values, as on torch's device `meta`.
        """
        if isinstance(activation, nn.ReLU):
            return self if self.rectified else self._rectified()
        if any(parameter.is_meta for parameter in activation.parameters()):
            raise MissingValuesError(f"The parameters of this {type(activation).__name__} have no values.")
        learned = max((parameter.numel() for parameter in activation.parameters()), default=1)
        known = self if learned == 1 else self.of(learned)
        nodes = torch.from_numpy(_NODES)[:, None]
        weights = torch.from_numpy(_WEIGHTS / _WEIGHTS.sum())[:, None]
        inputs = known.mean + nodes * known.variance.clamp_min(0).sqrt()
        outputs = deepcopy(activation).cpu().double().eval()(inputs)
        mean = (weights * outputs).sum(0)
        return Channels(mean, ((weights * outputs.square()).sum(0) - mean.square()).clamp_min(0))

    def _rectified(self) -> Channels:
        """E[max(x, 0)] and E[max(x, 0)²] of x ~ N(mean, variance)."""
        deviation = self.variance.clamp_min(0).sqrt()
        standard = self.mean / deviation.clamp_min(1e-150)
        above = ndtr(standard)
        density = torch.exp(-standard.square() / 2) / sqrt(2 * torch.pi)
        mean = self.mean * above + deviation * density
        second = (self.mean.square() + self.variance) * above + self.mean * deviation * density
        return Channels(mean, (second - mean.square()).clamp_min(0), rectified=True)


@cache
def _greatest(count: float, rectified: bool) -> tuple[float, float, float]:
    """Mean and variance of the greatest of so many standard normal numbers, or of their ReLUs; and one's moment."""
    one = Stream.standard().through(_RELU) if rectified else Stream.standard()
    found = one.greatest(count)
    return found.mean, found.variance, one.variance + one.mean**2
