"""The embedded default: 1,797 scans of handwritten digits that come with scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from normless.data.images.augmentation import Augmentation
from normless.data.images.image_data import ImageData
from normless.data.images.tensor_images import Split, Splits, TensorImages

TEST_SIZE = 360
SIDE = 8


def digits(*, root: Path, download: bool, side: int = SIDE) -> ImageData:
    """Load ``sklearn.datasets.load_digits``: 10 classes, 1×8×8, split once for all into 1,437 and 360.

    The stored values 0 … 16 become the bytes round(value · 255/16). A ``side`` above 8 enlarges the images
    bilinearly, for networks that divide the resolution by more than 8. Neither ``root`` nor ``download`` has a use.

    Raises:
        ValueError: the side is below 8.
    """
    if side < SIDE:
        raise ValueError(f"The images of digits have a side of {SIDE} pixels and are only enlarged, got side={side}.")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    if side > SIDE:
        images = F.interpolate(images.float(), size=(side, side), mode="bilinear").round().to(torch.uint8)
    whole = Split(images, torch.from_numpy(bunch.target.astype(np.int64)))
    rows = train_test_split(np.arange(len(bunch.target)), test_size=TEST_SIZE, stratify=bunch.target, random_state=0)
    train, test = (whole.take(torch.from_numpy(np.sort(part))) for part in rows)
    return TensorImages(
        Splits(train, test),
        name="digits",
        classes=10,
        source="scikit-learn load_digits, fixed stratified split",
        default_augmentation=Augmentation(),
    )
