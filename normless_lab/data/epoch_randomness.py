"""Every random choice of one epoch, drawn at its start.

NumPy draws on the CPU, so an epoch is the same on every device and for any number of processes, and no global
generator is used. Each kind of choice has its own stream: one augmentation does not change the others or the order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normless_lab.data.images.augmentation import Augmentation


class Draws(NamedTuple):
    """The random choices of N examples; None for choices that the augmentation does not make.

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
        """Return the same draws on another device."""
        return self._each(lambda values: values.to(device))

    def take(self, positions: Tensor) -> Draws:
        """Return the draws at some positions [M] of the epoch."""
        return self._each(lambda values: values.index_select(0, positions))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Draws:
        return Draws(**{name: change(values) for name, values in self._asdict().items() if values is not None})


def check_share(rank: int, world_size: int, batch_size: int = 1) -> None:
    """Refuse batches without examples, and the rank of a process that does not exist."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be 0 to world_size − 1 = {world_size - 1}, got {rank}.")


def epoch_sequence(seed: int, epoch: int) -> np.random.SeedSequence:
    """Return the source of all random choices of an epoch (from 0): `SeedSequence(seed, spawn_key=(epoch,))`.

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
    draws: dict[str, NDArray[Any]] = {
        "order": order.permutation(examples),
        "seed": seeds.integers(2**62, size=examples),
    }
    if augmentation.crop:
        draws["shift"] = shift.integers(2 * augmentation.crop + 1, size=(examples, 2))
    if augmentation.flip:
        draws["flip"] = flip.random(examples) < 0.5
    if augmentation.cutout:
        draws["hole"] = hole.integers(image_shape[-2:], size=(examples, 2))
    if augmentation.mixup:
        draws["weight"] = weight.beta(augmentation.mixup, augmentation.mixup, size=examples).astype(np.float32)
    return Draws(**{name: torch.from_numpy(values) for name, values in draws.items()})
