from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from normless_lab.data import Augmentation, load_data

NOTHING = Augmentation()


def test_digits_are_the_whole_set_split_evenly_over_the_classes() -> None:
    data = load_data("digits")
    assert (data.name, data.classes, data.image_shape) == ("digits", 10, (1, 8, 8))
    assert (data.train_size, data.test_size) == (1437, 360)
    assert data.default_augmentation == Augmentation()
    both = [
        next(iter(data.train_batches(1437, seed=0, epoch=0, augmentation=NOTHING, device="cpu"))),
        next(iter(data.test_batches(360, device="cpu"))),
    ]
    pixels = (torch.cat([batch.inputs for batch in both]) * data.std[0] + data.mean[0]) * 255
    labels = torch.cat([batch.targets for batch in both])
    found = sorted(zip(labels.tolist(), pixels.round().byte().flatten(1).tolist(), strict=True))
    bunch = load_digits()
    expected = np.rint(bunch.data * 255 / 16).astype(int)
    assert found == sorted(zip(bunch.target.tolist(), expected.tolist(), strict=True))
    assert expected.max() == 255
    shares = data.test_labels.bincount() / (data.test_labels.bincount() + data.train.labels.bincount())
    assert torch.all((shares - 360 / 1797).abs() < 0.005)
    assert load_data("digits").provenance == data.provenance


@pytest.mark.parametrize(("name", "accuracy"), [("gaussian", 0.01), ("correlated", 1e-5)])
def test_generated_images_are_normalized_and_drawn_by_the_seed(name: str, accuracy: float) -> None:
    text = f"{name}(image_shape=(3, 16, 16), classes=4, train=400)"
    data = load_data(text, test=100)
    assert (data.classes, data.image_shape, data.train_size, data.test_size) == (4, (3, 16, 16), 400, 100)
    (batch,) = data.train_batches(400, seed=0, epoch=0, augmentation=data.default_augmentation, device="cpu")
    assert batch.inputs.mean((0, 2, 3)).tolist() == pytest.approx([0] * 3, abs=accuracy)
    assert batch.inputs.std((0, 2, 3), correction=0).tolist() == pytest.approx([1] * 3, abs=accuracy)
    assert batch.targets.unique().tolist() == [0, 1, 2, 3]
    assert load_data(f"{name}(classes=4, train=400, test=100, image_shape=(3, 16, 16))").provenance == data.provenance
    assert load_data(text, test=100, seed=1).provenance != data.provenance
