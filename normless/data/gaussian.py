"""Noise with random labels: what the theory of signal propagation assumes, and a load for benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from normless.data.augmentation import Augmentation
from normless.data.images import ImageData
from normless.data.tensor_images import Split, Splits, TensorImages


def gaussian(
    *,
    root: Path,
    download: bool,
    image_shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    train: int = 1024,
    test: int = 256,
    seed: int = 0,
) -> ImageData:
    """Draw images (C, H, W) or vectors (features,) of independent N(0, 1), with uniformly random labels.

    Inputs are passed on as drawn (mean 0, standard deviation 1 by construction). Neither ``root`` nor
    ``download`` has a use.

    Raises:
        ValueError: the shape has not one or three positive lengths, or a count is below 1.
    """
    whole = isinstance(image_shape, Sequence) and all(isinstance(n, int) and n >= 1 for n in image_shape)
    if not whole or len(image_shape) not in (1, 3):
        raise ValueError(f"image_shape of gaussian is (C, H, W) or (features,), got {image_shape!r}.")
    shape = tuple(image_shape)
    require_counts("gaussian", classes=classes, train=train, test=test)
    generator = torch.Generator().manual_seed(seed)
    splits = Splits(*(_split(size, shape, classes, generator) for size in (train, test)))
    return TensorImages(
        splits,
        name="gaussian",
        classes=classes,
        source=f"independent N(0, 1), random labels, seed {seed}",
        default_augmentation=Augmentation(),
        statistics=(torch.zeros(shape[0]), torch.ones(shape[0])),
    )


def require_counts(source: str, **counts: int) -> None:
    """Refuse counts of a generated data set that are no whole numbers from 1.

    Raises:
        ValueError: the first such count, by its name.
    """
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} of {source} is a whole number from 1, got {count!r}.")


def _split(size: int, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Split:
    images = torch.randn(size, *shape, generator=generator, dtype=torch.float32)
    return Split(images, torch.randint(classes, (size,), generator=generator))
