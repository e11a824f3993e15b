"""Every random choice of one epoch, drawn at its start.

NumPy draws on the CPU, so an epoch is the same on every device and for any number of processes, and no global
generator is used. Each kind of choice has its own stream: one augmentation does not change the others or the order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from normless.data.images.augmentation import Augmentation


@dataclass(frozen=True)
class Draws:
    """The random choices of N examples; None where the augmentation has none.

    Attributes:
        order: [N] int64, which example of the training set comes at each position.
        seed: [N] int64, a seed for a transformation that draws for itself (cropping image files).
        shift: [N, 2] int64, row and column of the crop in the padded image, 0 … 2·padding.
        flip: [N] bool, whether to mirror left and right.
        hole: [N, 2] int64, row and column of the centre of the cutout.
        weight: [N] float32, the share λ of the example itself in its mixture.
    """

    order: Tensor
    seed: Tensor
    shift: Tensor | None = None
    flip: Tensor | None = None
    hole: Tensor | None = None
    weight: Tensor | None = None

    def to(self, device: torch.device) -> Draws:
        """The same draws on another device."""
        return self._each(lambda values: values.to(device))

    def take(self, positions: Tensor) -> Draws:
        """The draws at some positions [M] of the epoch."""
        return self._each(lambda values: values.index_select(0, positions))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Draws:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(value) for name, value in values.items() if value is not None})


def epoch_sequence(seed: int, epoch: int) -> np.random.SeedSequence:
    """The source of all random choices of an epoch (from 0) of a run: `SeedSequence(seed, spawn_key=(epoch,))`.

    It mixes the two numbers, so that (0, 1) and (1, 0) are independent.
    """
    if seed < 0 or epoch < 0:
        raise ValueError(f"seed and epoch must not be negative, got seed={seed}, epoch={epoch}.")
    return np.random.SeedSequence(seed, spawn_key=(epoch,))


def draw_epoch(
    seed: int, epoch: int, *, examples: int, image_shape: tuple[int, ...], augmentation: Augmentation
) -> Draws:
    """Draw one epoch, a pure function of the arguments; the streams are the children of `epoch_sequence`."""
    children = epoch_sequence(seed, epoch).spawn(6)
    order, seeds, shift, flip, hole, weight = (np.random.default_rng(child) for child in children)
    draws = Draws(
        order=torch.from_numpy(order.permutation(examples)),
        seed=torch.from_numpy(seeds.integers(2**62, size=examples)),
    )
    drawn: dict[str, Tensor] = {}
    if augmentation.crop:
        drawn["shift"] = torch.from_numpy(shift.integers(2 * augmentation.crop + 1, size=(examples, 2)))
    if augmentation.flip:
        drawn["flip"] = torch.from_numpy(flip.random(examples) < 0.5)
    if augmentation.cutout:
        drawn["hole"] = torch.from_numpy(hole.integers(image_shape[-2:], size=(examples, 2)))
    if augmentation.mixup:
        mixture = weight.beta(augmentation.mixup, augmentation.mixup, size=examples)
        drawn["weight"] = torch.from_numpy(mixture.astype(np.float32))
    return Draws(draws.order, draws.seed, **drawn)
