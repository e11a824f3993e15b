"""What is measured at residual sums and norms: ratios, massive activations, outlier features, divisors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import nan, sqrt

import torch
from torch import Tensor

from normless.doctor.trained._limits import ABOUT, OUTLIER, TIMES
from normless.nn import FreezableNorm
from normless.probes import Watcher
from normless.residual import ResidualBlock

# The median of larger tensors is that of so many of their values.
_SAMPLE = 2**16


@dataclass
class Features:
    """The tokens of y (B, T, C) over all batches, and for each channel those with a magnitude of 6 or more."""

    tokens: int = 0
    large: Tensor | None = None

    def see(self, y: Tensor, least: float = OUTLIER) -> None:
        """Add tokens; in a stream, whose scale is arbitrary, `least` is larger."""
        rows = y.detach().flatten(0, -2)
        counts = (rows.abs() >= least).sum(0)
        is_first = self.large is None or self.large.shape != counts.shape
        self.tokens = len(rows) if is_first else self.tokens + len(rows)
        self.large = counts if is_first or self.large is None else self.large + counts


@dataclass
class MeasuredSum:
    """A residual sum over all batches.

    Attributes:
        skip, branch: sums of squares.
        largest: the largest magnitude, and the median magnitude of the example that has it.
        position: the token that has it in a sequence, −1 otherwise; `channel`: its channel.
    """

    skip: float = 0.0
    branch: float = 0.0
    largest: float = 0.0
    median: float = nan
    position: int = -1
    channel: int = -1
    features: Features = field(default_factory=Features)

    @property
    def ratio(self) -> float:
        """The root mean square of the branch divided by that of the skip path."""
        return (self.branch / self.skip) ** 0.5 if self.skip else nan

    def see(self, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Add a sum; an example's hidden state is its part."""
        self.skip += float(skip.float().square().sum())
        self.branch += float(torch.stack([branch.float().square().sum() for branch in branches]).sum())
        sizes = total.abs().flatten(1) if total.dim() > 1 else total.abs().unsqueeze(0)
        if not sizes.numel():
            return
        example, inside = divmod(int(sizes.argmax()), sizes.shape[1])
        has_tokens = total.dim() == 3
        if float(sizes[example, inside]) > self.largest:
            self.largest, self.median = float(sizes[example, inside]), _median(sizes[example])
            self.channel = inside % total.shape[-1] if has_tokens else inside // max(total[0, :1].numel(), 1)
            self.position = inside // total.shape[-1] if has_tokens else -1
        if has_tokens:
            self.features.see(total, max(OUTLIER, TIMES * _median(sizes.flatten())))


def _median(values: Tensor) -> float:
    return float(values[:: max(values.numel() // _SAMPLE, 1)].float().median())


@dataclass
class SumWatcher(Watcher):
    """Measures residual sums inside the context that `quiet` returns."""

    quiet: Callable[[], AbstractContextManager[None]] = nullcontext
    seen: dict[str, MeasuredSum] = field(default_factory=dict)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Measure a sum."""
        with self.quiet():
            self.seen.setdefault(block.name, MeasuredSum()).see(skip, branches, total)


@dataclass
class Divisors:
    """The divisors d = √(variance + ε) of a norm over all data.

    Attributes:
        norm: computes the same as the norm, measures the mean of d, and can be frozen at it.
        count, total, squares: of d, for its coefficient of variation.
        near, varied: the number of statistics whose variance is comparable with ε, and of those above 0, unlike those
            of padding.
    """

    norm: FreezableNorm
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    near: int = 0
    varied: int = 0
    features: Features = field(default_factory=Features)

    def see(self, x: Tensor, y: Tensor) -> None:
        """Add an input and an output of the norm."""
        if y.dim() == 3:
            self.features.see(y)
        self.norm.training = True
        self.norm(x.detach())
        d = self.norm.divisors(x.detach()).double()
        self.count += d.numel()
        self.total += float(d.sum())
        self.squares += float(d.square().sum())
        variance = d.square() - self.norm.eps
        varied = variance > 1e-4 * self.norm.eps
        self.varied += int(varied.sum())
        self.near += int((varied & (variance < ABOUT * self.norm.eps)).sum())

    def frozen(self) -> FreezableNorm:
        """Return the norm with the mean of d in place of d."""
        self.norm.training = False
        self.norm.update()
        self.norm.frozen.fill_(1.0)
        return self.norm

    @property
    def variation(self) -> float:
        """The coefficient of variation of d."""
        if not self.total:
            return nan
        mean = self.total / self.count
        return sqrt(max(self.squares / self.count / mean**2 - 1, 0.0))
