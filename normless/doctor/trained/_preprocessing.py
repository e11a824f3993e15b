"""Whether a linear change of the inputs, other preprocessing than in training, explains what the first norm reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normless.doctor.facts._guessing import descend
from normless.doctor.trained._fit import Fit
from normless.doctor.trained._limits import MISFIT
from normless.doctor.trained._subject import TrainedSubject
from normless.errors import NormlessError
from normless.state import running

# The share of the misfit that a change of the inputs may leave.
_LEFT = 0.25
# Mean and deviation of inputs as people prepare them: standardized, in [0, 1], in [-1, 1], from 0 to 255.
_PREPARED = ((0.0, 1.0), (0.4, 0.3), (0.0, 0.6), (110.0, 70.0))
# Examples that the search runs, and the starts that it follows.
_EXAMPLES, _STARTS = 64, 3


class _Read(NormlessError):  # noqa: N818
    """The norm has read its input: the pass ends."""


@dataclass(frozen=True)
class Change:
    """The map x ↦ factor·x + offset of each channel, after a reversal of the channels' order, that undoes another."""

    factor: Tensor
    offset: Tensor
    is_reversed: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Return changed inputs (B, C, …)."""
        shape = (1, -1, *(1,) * (x.dim() - 2))
        x = x.flip(1) if self.is_reversed else x
        return self.factor.to(x.dtype) * x + self.offset.to(x.dtype).view(shape)

    @property
    def scale(self) -> float:
        """How many times as large the given inputs are as those of training."""
        return float(1 / self.factor)

    @property
    def shift(self) -> float:
        """What was added to them, in the mean over channels."""
        return float((-self.offset / self.factor).mean())


def undone(subject: TrainedSubject, path: str) -> Change | None:
    """Return the change of the inputs after which the running statistics of all norms fit; None if there is none.

    A wrong variance of the first norm alone has the same effect as scaled inputs. It is that, if the given inputs
    look prepared (standardized, in [0, 1], …) and the changed ones do not.
    """
    given = [inputs for inputs, _ in subject.batches]
    is_plain = all(isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1 for x in given)
    if not is_plain or next(iter(subject.fits), None) != path or len({x.shape[1:] for x in given}) > 1:
        return None
    x = torch.cat([x[: max(1, _EXAMPLES // len(given))] for x in given])
    change = min(_searched(subject, path, x), key=lambda found: found[0])[1]
    if _is_prepared(x) and not _is_prepared(change(x)):
        return None
    before = {name: float(fit.misfit().mean()) for name, fit in subject.fits.items()}
    after = {name: float(fit.misfit().mean()) for name, fit in subject.fits_of([*map(change, given)]).items()}
    is_left = after[path] > max(_LEFT * before[path], MISFIT / 5)
    return None if is_left or sum(after.values()) > max(_LEFT * sum(before.values()), MISFIT) else change


def _is_prepared(x: Tensor) -> bool:
    """Whether inputs look standardized or lie in a range that people use."""
    low, high, mean, deviation = map(float, (x.min(), x.max(), x.mean(), x.std()))
    is_standardized = abs(mean) < 0.75 and 0.6 < deviation < 1.65
    ranges = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
    inside = (a - (b - a) / 10 < low and high < b + (b - a) / 10 and high - low > (b - a) / 2 for a, b in ranges)
    return is_standardized or any(inside)


def _searched(subject: TrainedSubject, path: str, x: Tensor) -> Iterator[tuple[float, Change]]:
    """Yield changes of the inputs with the misfit that they leave at a norm, by descent from the best starts."""
    fit = subject.fits[path]
    channels = x.shape[1] if x.dim() > 2 and 2 * x.shape[1] < len(fit.mean) else 1
    others = [axis for axis in range(x.dim()) if channels == 1 or axis != 1]
    mean, deviation = x.mean(others).reshape(channels), float(x.std())
    starts = [
        (torch.tensor([0.0]), torch.full((channels,), goal / spread), sign * spread, is_reversed)
        for goal, spread in _PREPARED
        for sign in (1.0, -1.0)
        for is_reversed in ((False, True) if channels == 3 else (False,))
    ]

    def change(log: Tensor, centre: Tensor, spread: float, is_reversed: bool) -> Change:
        factor = spread * log.to(x.device).exp() / max(deviation, 1e-12)
        about = mean.flip(0) if is_reversed else mean
        return Change(factor, abs(spread) * centre.to(x.device) - factor * about, is_reversed)

    def nats(log: Tensor, centre: Tensor, spread: float, is_reversed: bool) -> Tensor:
        return _misfit(fit, _read(subject, path, change(log, centre, spread, is_reversed)(x)))

    with running(subject.model, False), subject.normalizing_by_batch():
        ranked = sorted(starts, key=lambda start: float(nats(*start)))[:_STARTS]
        for log, centre, spread, is_reversed in ranked:
            free, found = [log.clone().requires_grad_(), centre.clone().requires_grad_()], list[float]()
            descend(lambda free=free, rest=(spread, is_reversed): nats(*free, *rest), free, found, steps=25)  # type: ignore[misc]
            best = free[0].detach(), free[1].detach(), spread, is_reversed
            yield float(nats(*best)), change(*best)


def _read(subject: TrainedSubject, path: str, x: Tensor) -> Tensor:
    """Return what a norm reads for inputs."""
    read: list[Tensor] = []

    def stop(_: Any, inputs: tuple[Tensor, ...]) -> None:
        read.append(inputs[0])
        raise _Read

    with subject.model.get_submodule(path).register_forward_pre_hook(stop):
        try:
            subject.run(x)
        except _Read:
            return read[0]
    raise ValueError(f"{path} did not run")


def _misfit(fit: Fit, x: Tensor) -> Tensor:
    """Return a bounded growth of the divergence of running statistics from those of x, which has a gradient."""
    values = x.double().transpose(0, 1).flatten(1)
    mean, variance = values.mean(1), values.var(1, correction=0) + fit.eps
    ratio = variance / (fit.variance + fit.eps)
    nats = (ratio + (mean - fit.mean).square() / (fit.variance + fit.eps) - 1 - ratio.log()) / 2
    return nats.clamp_min(0).log1p().mean()
