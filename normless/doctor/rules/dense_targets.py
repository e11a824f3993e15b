"""A check of targets with a value for each position: whether they lie where their inputs are."""

from __future__ import annotations

from math import log, sqrt

import torch
from torch import Tensor

from normless.doctor.facts.examination import Examination
from normless.doctor.facts.flow import tensors
from normless.doctor.findings import Evidence, NotAsked, Steps, check, finding

# Fewer or smaller images say nothing; of so many values, correlations take seconds.
SEVERAL, SIDE, MANY = 8, 8, 4 * 10**6
# A correlation counts from this multiple of the largest one of noise, √(2 log N) deviations among N; targets are
# moved if it is so many times that where they lie, and so many positions away.
ABOVE, TIMES, FAR = 1.2, 2.0, 2
# Targets of which this share is moved are apart from their inputs, unless nearly all are moved in fewer ways than a
# share of them, which a network can learn.
MOVED, ALL, WAYS = 0.25, 0.9, 0.25


@check("place of the targets")
def check_place(exam: Examination) -> Steps:
    """Correlate targets (examples, …, height, width) with inputs at all shifts and flips, for each example."""
    y = exam.targets
    if not isinstance(y, Tensor) or y.dim() not in (3, 4) or min(y.shape[-2:]) < SIDE or len(y) < SEVERAL:
        raise NotAsked("the targets have no value for each position of images")
    images = [
        x for x in tensors(exam.inputs) if x.is_floating_point() and x.dim() == 4 and x.shape[-2:] == y.shape[-2:]
    ]
    images = [x for x in images if len(x) == len(y) and x.layout == torch.strided]
    if not images or (y.dim() == 4 and y.shape[1] != 1) or y.is_complex():
        raise NotAsked("the targets have no value for each position of images")
    number = min(len(y), MANY // images[0][0].numel())
    if number < SEVERAL:
        raise NotAsked(f"{SEVERAL} images have more than {MANY:.0e} values")
    masks = y.detach().double().reshape(len(y), *y.shape[-2:])[:number]
    moved, seen = _moves(images[0].detach().double()[:number], masks)
    differs = len(set(moved)) >= max(2, WAYS * len(moved)) or len(moved) < ALL * seen
    if seen >= SEVERAL and len(moved) > MOVED * seen and differs:
        evidence: Evidence = {"moved": len(moved), "examples": seen, "ways": len(set(moved))}
        yield finding("moved_targets", (), evidence)
    return f"{len(moved)} of {seen} that correlate with their images lie elsewhere"


def _moves(x: Tensor, y: Tensor) -> tuple[list[tuple[int, ...]], int]:
    """Return the flips and shifts of targets that lie elsewhere, and the number of those that correlate anywhere."""
    height, width = y.shape[-2:]
    spectrum = torch.fft.fft2(x - x.mean((2, 3), keepdim=True))
    moved: list[tuple[int, ...]] = []
    seen = 0
    flips: tuple[tuple[int, ...], ...] = ((), (-2,), (-1,), (-2, -1))
    # Correlations (flips, examples, channels, shifts), with those of no shift first.
    at = torch.stack([_correlated(spectrum, y.flip(axes) if axes else y) for axes in flips])
    for own in at.unbind(1):
        channel = int(own.amax((0, 2)).argmax())
        of_channel = own[:, channel]
        peak, here = float(of_channel.max()), float(of_channel[0, 0])
        deviation = float(of_channel.square().mean().sqrt())
        if peak < ABOVE * sqrt(2 * log(own.numel())) * deviation:
            continue
        seen += 1
        flip, shift = divmod(int(of_channel.argmax()), height * width)
        row, column = divmod(shift, width)
        distance = max(min(row, height - row), min(column, width - column))
        if peak > TIMES * here and (flip or distance > FAR):
            moved.append((flip, shift))
    return moved, seen


def _correlated(spectrum: Tensor, y: Tensor) -> Tensor:
    """Return |correlation| of images and targets for each shift, (examples, channels, shifts)."""
    other = torch.fft.fft2(y - y.mean((1, 2), keepdim=True)).unsqueeze(1)
    correlation: Tensor = torch.fft.ifft2(spectrum * other.conj()).real
    return correlation.abs().flatten(2)
