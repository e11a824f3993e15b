"""Generated images with long-range correlations."""

from __future__ import annotations

import pytest
import torch

from normless_lab.data import Augmentation, load_data
from normless_lab.data.images.built_in import correlated_noise


def test_images_are_normalized_and_drawn_by_the_seed() -> None:
    text = "correlated(image_shape=(3, 12, 16), classes=4, train=300, test=20)"
    data = load_data(text)
    assert (data.classes, data.image_shape, data.train_size, data.test_size) == (4, (3, 12, 16), 300, 20)
    (batch,) = data.train_batches(300, seed=0, epoch=0, augmentation=Augmentation())
    assert batch.inputs.mean((0, 2, 3)).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    assert batch.inputs.std((0, 2, 3), correction=0).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert batch.targets.unique().tolist() == [0, 1, 2, 3]
    assert load_data(text).provenance == data.provenance
    assert load_data(text, seed=1).provenance != data.provenance


def test_neighbours_are_alike_and_images_differ_in_brightness() -> None:
    images = correlated_noise(400, (1, 16, 16), torch.Generator().manual_seed(0))[:, 0]
    flat = images - images.mean()

    def correlation(columns: int) -> float:
        return float((flat[..., columns:] * flat[..., : 16 - columns]).mean() / flat.square().mean())

    assert 0.5 < correlation(1) < 1
    assert correlation(1) > correlation(4) > correlation(12) > 0.1
    # Independent pixels would leave 1/256 of the variance to the means of images.
    assert images.mean((1, 2)).var() / images.var() > 0.2
