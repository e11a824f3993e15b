"""The embedded default: 1,797 scans of handwritten digits (Alpaydin & Kaynak 1998), as in scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from normless.data.images.augmentation import Augmentation
from normless.data.images.image_data import ImageData
from normless.data.images.tensor_images import Split, Splits, TensorImages

FILE = Path(__file__).with_name("digits.npz")
SIDE = 8


def digits(*, side: int = SIDE) -> ImageData:
    """Scans of handwritten digits: 10 classes, 1×8×8, 1,437 for training and 360 for testing.

    The data of ``sklearn.datasets.load_digits`` in one fixed stratified split; the stored values 0 … 16 become the
    bytes round(value · 255/16). A ``side`` above 8 enlarges the images bilinearly, for networks that divide the
    resolution by more than 8.

    Raises:
        ValueError: the side is below 8.
    """
    if side < SIDE:
        raise ValueError(f"The images of digits have a side of {SIDE} pixels and are only enlarged, got side={side}.")
    with np.load(FILE) as stored:
        pixels, labels, testing = stored["images"], stored["labels"], torch.from_numpy(stored["test"])
    images = torch.from_numpy(np.rint(pixels * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    if side > SIDE:
        images = F.interpolate(images.float(), size=(side, side), mode="bilinear").round().to(torch.uint8)
    whole = Split(images, torch.from_numpy(labels.astype(np.int64)))
    return TensorImages(
        Splits(*(whole.take(chosen.nonzero().flatten()) for chosen in (~testing, testing))),
        name="digits",
        classes=10,
        source="scikit-learn load_digits, fixed stratified split",
        default_augmentation=Augmentation(),
    )
