"""Noise with random labels: what the theory of signal propagation assumes, and a load for benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from normless.data.images.generated import checked_shape, generated
from normless.data.images.image_data import ImageData


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
    shape = checked_shape("gaussian", image_shape, {3: "(C, H, W)", 1: "(features,)"})
    return generated(
        "gaussian",
        "independent N(0, 1)",
        lambda count, generator: torch.randn(count, *shape, generator=generator, dtype=torch.float32),
        lambda _: (torch.zeros(shape[0]), torch.ones(shape[0])),
        classes=classes,
        train=train,
        test=test,
        seed=seed,
    )
