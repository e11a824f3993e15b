from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from normless_lab.data import Augmentation, DataFormatError, load_data


def write(path: Path, images: Any, labels: Any) -> None:
    """Write as the official files are: 32×32×3×N, a column of labels, the digit 0 as 10."""
    path.parent.mkdir(exist_ok=True)
    column = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": column})


@pytest.mark.parametrize("place", [".", "svhn"])
def test_official_files_are_read(tmp_path: Path, place: str, random_images: Any) -> None:
    train, test = random_images(50), random_images(5, seed=1)
    write(tmp_path / place / "train_32x32.mat", *train)
    write(tmp_path / place / "test_32x32.mat", *test)
    data = load_data("svhn", root=tmp_path, download=False)
    assert (data.classes, data.image_shape, data.train_size) == (10, (3, 32, 32), 50)
    assert data.default_augmentation == Augmentation()
    assert 0 in data.train_labels
    assert data.train_labels.tolist() == train[1].tolist()
    (batch,) = data.test_batches(5, device="cpu")
    pixels = (batch.inputs * data.std[:, None, None] + data.mean[:, None, None]) * 255
    np.testing.assert_array_equal(pixels.round().byte().numpy(), test[0])
    assert batch.targets.tolist() == test[1].tolist()


def test_malformed_files_are_refused_by_name(tmp_path: Path, random_images: Any) -> None:
    images, labels = random_images(3)
    write(tmp_path / "test_32x32.mat", images, labels)
    train = tmp_path / "train_32x32.mat"
    train.write_bytes(b"nothing of the kind" * 20)
    with pytest.raises(DataFormatError, match=r"train_32x32.mat is not a MATLAB file"):
        load_data("svhn", root=tmp_path)
    write(train, images[:, :, :16], labels)
    with pytest.raises(DataFormatError, match=r"no array X of bytes with the shape 32×32×3×N"):
        load_data("svhn", root=tmp_path)
    for wrong in (np.array([1, 2, 11]), np.array([1, 2, -1]), np.array([0.5, 1, 2])):
        savemat(train, {"X": images.transpose(2, 3, 1, 0), "y": wrong})
        with pytest.raises(DataFormatError, match="whole numbers from 1 to 10"):
            load_data("svhn", root=tmp_path)
    savemat(train, {"X": images.transpose(2, 3, 1, 0)})
    with pytest.raises(DataFormatError, match="no array y"):
        load_data("svhn", root=tmp_path)
