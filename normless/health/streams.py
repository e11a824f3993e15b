"""What is measured at residual sums and norms: ratios, massive activations, outlier features, divisors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import nan

import torch
from torch import Tensor

from normless.health.limits import ABOUT, OUTLIER
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
    """

    skip: float = 0.0
    branch: float = 0.0
    largest: float = 0.0
    median: float = nan
    position: int = -1
    channel: int = -1

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
        with self.quiet():
            self._see(block, skip, branches, total)

    def _see(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        known = self.seen.setdefault(block.name, Sum())
        known.skip += float(skip.float().square().sum())
        known.branch += float(torch.stack([branch.float().square().sum() for branch in branches]).sum())
        sizes = total.abs().flatten(1) if total.dim() > 1 else total.abs().unsqueeze(0)
        if not sizes.numel():
            return
        at = int(sizes.argmax())
        example, inside = divmod(at, sizes.shape[1])
        if float(sizes[example, inside]) > known.largest:
            known.largest = float(sizes[example, inside])
            step = max(sizes.shape[1] // _SAMPLE, 1)
            known.median = float(sizes[example, ::step].float().median())
            tokens = total.dim() == 3
            known.channel = inside % total.shape[-1] if tokens else inside // max(total[0, :1].numel(), 1)
            known.position = inside // total.shape[-1] if tokens else -1


@dataclass
class Features:
    """The features of norms' outputs by layer: how many tokens have a magnitude of 6 or more (tokens, counts (C,))."""

    seen: dict[str, tuple[int, Tensor]] = field(default_factory=dict)

    def see(self, path: str, y: Tensor) -> None:
        """Add an output (B, T, C)."""
        rows = y.detach().flatten(0, -2)
        tokens, counts = self.seen.get(path, (0, torch.zeros(rows.shape[1], device=y.device)))
        if counts.shape == rows.shape[1:]:
            self.seen[path] = tokens + len(rows), counts + (rows.abs() >= OUTLIER).sum(0)


@dataclass
class Divisors:
    """The divisors d = √(variance + ε) of a norm over all data.

    Attributes:
        norm: computes the same as the norm, measures the mean of d, and can be frozen at it.
        count, total, squares: of d, for its coefficient of variation.
        near: the number of statistics whose variance is comparable with ε.
    """

    norm: FreezableNorm
    count: int = 0
    total: float = 0.0
    squares: float = 0.0
    near: int = 0

    def see(self, x: Tensor) -> None:
        """Add an input of the norm."""
        self.norm.training = True
        self.norm(x.detach())
        d = self.norm.divisors(x.detach()).double()
        self.count += d.numel()
        self.total += float(d.sum())
        self.squares += float(d.square().sum())
        self.near += int((d.square() < (1 + ABOUT) * self.norm.eps).sum()) if self.norm.eps else 0

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
        return max(self.squares / self.count / mean**2 - 1, 0.0) ** 0.5
