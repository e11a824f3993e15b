"""What is measured at residual sums and norms: ratios, massive activations, outlier features, divisors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import nan, sqrt

import torch
from torch import Tensor

from normless.doctor.trained.limits import ABOUT, OUTLIER, TIMES
from normless.nn import FreezableNorm
from normless.probes import Watcher
from normless.residual import ResidualBlock

# The median of larger tensors is that of so many of their values.
_SAMPLE = 2**16


@dataclass
class Sum:
    """A residual sum over all batches.

    Attributes:
        skip, branch: sums of squares.
        largest: the largest magnitude, and the median magnitude of the example that has it.
        position: the token that has it in a sequence, −1 otherwise; `channel`: its channel.
        features: of sums (B, T, C), the number of tokens, and for each channel that of the tokens with a magnitude of
            6 or more that is 20 times the median.
    """

    skip: float = 0.0
    branch: float = 0.0
    largest: float = 0.0
    median: float = nan
    position: int = -1
    channel: int = -1
    features: tuple[int, Tensor] | None = None

    @property
    def ratio(self) -> float:
        """The root mean square of the branch divided by that of the skip path."""
        return (self.branch / self.skip) ** 0.5 if self.skip else nan


@dataclass
class Sums(Watcher):
    """Measures residual sums inside the context that `quiet` returns; an example's hidden state is its part."""

    quiet: Callable[[], AbstractContextManager[None]] = nullcontext
    seen: dict[str, Sum] = field(default_factory=dict)

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Measure a sum."""
        with self.quiet():
            self._see(block, skip, branches, total)

    def _see(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        known = self.seen.setdefault(block.name, Sum())
        known.skip += float(skip.float().square().sum())
        known.branch += float(torch.stack([branch.float().square().sum() for branch in branches]).sum())
        sizes = total.abs().flatten(1) if total.dim() > 1 else total.abs().unsqueeze(0)
        if not sizes.numel():
            return
        example, inside = divmod(int(sizes.argmax()), sizes.shape[1])
        median, has_tokens = _median(sizes[example]), total.dim() == 3
        if float(sizes[example, inside]) > known.largest:
            known.largest, known.median = float(sizes[example, inside]), median
            known.channel = inside % total.shape[-1] if has_tokens else inside // max(total[0, :1].numel(), 1)
            known.position = inside // total.shape[-1] if has_tokens else -1
        if has_tokens:
            known.features = outliers(total, known.features, max(OUTLIER, TIMES * _median(sizes.flatten())))


def near_epsilon(variances: Tensor, eps: float) -> tuple[int, int]:
    """Return how many variances are comparable with ε, and how many are above 0, unlike those of padding."""
    varied = variances > 1e-4 * eps
    return int((varied & (variances < ABOUT * eps)).sum()), int(varied.sum())


def _median(values: Tensor) -> float:
    return float(values[:: max(values.numel() // _SAMPLE, 1)].float().median())


def outliers(y: Tensor, known: tuple[int, Tensor] | None, least: float) -> tuple[int, Tensor] | None:
    """Add the tokens of y (B, T, C), and for each channel those with a magnitude from `least`, to those known."""
    rows = y.detach().flatten(0, -2)
    counts = (rows.abs() >= least).sum(0)
    if known is None or known[1].shape != counts.shape:
        return len(rows), counts
    return known[0] + len(rows), known[1] + counts


@dataclass
class Divisors:
    """The divisors d = √(variance + ε) of a norm over all data.

    Attributes:
        norm: computes the same as the norm, measures the mean of d, and can be frozen at it.
        count, total, squares: of d, for its coefficient of variation.
        near, varied: the number of statistics whose variance is comparable with ε, and of those above 0.
        features: as of `Sum`, with a magnitude of 6 or more.
    """

    norm: FreezableNorm
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    near: int = 0
    varied: int = 0
    features: tuple[int, Tensor] | None = None

    def see(self, x: Tensor, y: Tensor) -> None:
        """Add an input and an output of the norm."""
        self.features = outliers(y, self.features, OUTLIER) if y.dim() == 3 else None
        self.norm.training = True
        self.norm(x.detach())
        d = self.norm.divisors(x.detach()).double()
        self.count += d.numel()
        self.total += float(d.sum())
        self.squares += float(d.square().sum())
        near, varied = near_epsilon(d.square() - self.norm.eps, self.norm.eps)
        self.near, self.varied = self.near + near, self.varied + varied

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
