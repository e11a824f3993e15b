"""How well running statistics fit the data: in passes in which batch norms normalize by the batch, as in training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# Differences below so many standard errors are sampling, and one channel counts at most so many nats.
_ERRORS, _MOST = 3.0, 2.0


@dataclass
class Fit:
    """The input of a batch norm over all batches, beside its running statistics before them.

    Attributes:
        mean, variance: the running statistics, shape (C,), in float64.
        eps: ε of the norm.
        means, squares: for each batch the mean of x and x² of each example, shape (B, C).
    """

    mean: Tensor
    variance: Tensor
    eps: float
    means: list[Tensor] = field(default_factory=list)
    squares: list[Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, norm: Any) -> Fit:
        """Keep the running statistics of a norm."""
        mean, variance = (each.double().clone() for each in (norm.running_mean, norm.running_var))
        return cls(mean, variance, float(getattr(norm, "eps", 0.0)))

    def see(self, x: Tensor) -> None:
        """Add an input (B, C, …)."""
        values = x.detach().double().flatten(2) if x.dim() > 2 else x.detach().double().unsqueeze(-1)
        self.means.append(values.mean(-1))
        self.squares.append(values.square().mean(-1))

    def data(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return mean and variance of the data, averaged over batches, and their standard errors over examples."""
        mean = torch.stack([part.mean(0) for part in self.means]).mean(0)
        parts = zip(self.means, self.squares, strict=True)
        variance = torch.stack([(q.mean(0) - m.mean(0).square()).clamp_min(0) for m, q in parts]).mean(0)
        means, squares = torch.cat(self.means), torch.cat(self.squares)
        about = squares - 2 * mean * means + mean.square()
        root = max(len(means), 1) ** 0.5
        return mean, variance, means.std(0, correction=0) / root, about.std(0, correction=0) / root

    def misfit(self, mean: Tensor | None = None, variance: Tensor | None = None) -> Tensor:
        """Return for each channel the divergence of N(running μ, σ²) from N(m, v) of the data in nats, shape (C,).

            (v/σ² + (m − μ)²/σ² − 1 − log(v/σ²)) / 2

        with v + ε and σ² + ε, which the norm uses. Differences of m − μ and of log v/σ² count beyond three standard
        errors only, and a channel counts at most 2 nats. Other statistics than the norm's may be given.
        """
        mean = self.mean if mean is None else mean
        variance = (self.variance if variance is None else variance) + self.eps
        m, v, error_of_m, error_of_v = self.data()
        v = v + self.eps
        apart = ((m - mean).abs() - _ERRORS * error_of_m).clamp_min(0)
        logs = (v / variance).log()
        logs = logs.sign() * (logs.abs() - _ERRORS * error_of_v / v).clamp_min(0)
        nats = (logs.exp() - 1 - logs + apart.square() / variance) / 2
        return nats.nan_to_num(_MOST, posinf=_MOST).clamp_max(_MOST)

    def distance(self) -> tuple[float, float]:
        """Return the medians of |m − μ| in deviations of the data, and of its variance by the running one."""
        m, v, _, _ = self.data()
        shift = (m - self.mean).abs() / (v + self.eps).sqrt()
        return float(shift.median()), float(((v + self.eps) / (self.variance + self.eps)).median())
