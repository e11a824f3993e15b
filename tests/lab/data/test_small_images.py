"""CIFAR and SVHN from official files and from Parquet, wherever they may lie, and their refusals."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import random_images, write_batch, write_cifar10, write_parquet
from scipy.io import savemat
from torchvision.datasets import SVHN

from normless.errors import DataFormatError
from normless_lab.data import Augmentation, ImageData, load_data


def stored_test_set(data: ImageData) -> tuple[Any, list[int]]:
    """Return bytes and labels of the test set, read back from normalized batches."""
    (batch,) = data.test_batches(99)
    pixels = (batch.inputs * data.std[:, None, None] + data.mean[:, None, None]) * 255
    return pixels.round().byte().numpy(), batch.targets.tolist()


def assert_read(data: ImageData, train: tuple[Any, Any], test: tuple[Any, Any]) -> None:
    assert data.train.labels.tolist() == train[1].tolist()
    np.testing.assert_allclose(data.mean.numpy(), (train[0] / 255).mean((0, 2, 3)), rtol=1e-6)
    images, labels = stored_test_set(data)
    np.testing.assert_array_equal(images, test[0])
    assert labels == test[1].tolist()


def refused(root: Path, message: str, name: str = "cifar10", error: type[Exception] = DataFormatError) -> None:
    with pytest.raises(error, match=message):
        load_data(name, root=root, download=False)


@pytest.mark.parametrize("place", ["cifar10/cifar-10-batches-py", "."])
def test_cifar10_is_read_wherever_its_official_files_lie(tmp_path: Path, place: str) -> None:
    images, labels, *test = write_cifar10(tmp_path / place)
    data = load_data("cifar10", root=tmp_path, download=False)
    assert (data.name, data.classes, data.image_shape) == ("cifar10", 10, (3, 32, 32))
    assert data.default_augmentation == Augmentation(crop=4, flip=True)
    assert_read(data, (images, labels), tuple(test))
    assert "official files; 10 train / 4 test" in data.provenance
    assert str(tmp_path) not in data.provenance


@pytest.mark.parametrize(
    ("name", "classes", "key"), [("cifar100", 100, "fine"), ("cifar100(coarse=True)", 20, "coarse")]
)
def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path, name: str, classes: int, key: str) -> None:
    expected = {}
    for split, n in (("train", 6), ("test", 3)):
        images, fine = random_images(n, classes=100, seed=n)
        labels = {"fine": fine, "coarse": fine % 20}
        expected[split] = images, labels[key]
        path = tmp_path / "cifar-100-python" / split
        write_batch(path, images, fine_labels=labels["fine"], coarse_labels=labels["coarse"])
    data = load_data(name, root=tmp_path, download=False)
    assert (data.name, data.classes) == ("cifar100", classes)
    assert_read(data, expected["train"], expected["test"])


def test_malformed_batches_are_refused_by_name(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    images, labels = random_images(2)
    batch = tmp_path / "data_batch_2"
    for pixels, values, message in (
        (images[:, :, :16], {"labels": labels}, "data_batch_2 has no 'data' with a row of 3072"),
        (images, {"labels": labels + 10}, "expected 0 to 9"),
    ):
        write_batch(batch, pixels, **values)
        refused(tmp_path, message)


def write_svhn(path: Path, images: Any, labels: Any) -> str:
    """Write as the official files are: 32×32×3×N, a column of labels, the digit 0 as 10; return the digest."""
    path.parent.mkdir(exist_ok=True)
    column = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
    savemat(path, {"X": images.transpose(2, 3, 1, 0), "y": column})
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_svhn_is_read_with_and_without_its_extra_set_if_its_digests_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = {"train": random_images(50), "test": random_images(5, seed=1), "extra": random_images(7, seed=2)}
    official = {}
    for part, examples in sets.items():
        url, file, _ = SVHN.split_list[part]
        official[part] = [url, file, write_svhn(tmp_path / "svhn" / file, *examples)]
    refused(tmp_path, r"test_32x32\.mat in .* has the wrong digest", "svhn")
    monkeypatch.setattr(SVHN, "split_list", official)
    data = load_data("svhn", root=tmp_path, download=False)
    assert (data.classes, data.image_shape, data.train_size) == (10, (3, 32, 32), 50)
    assert 0 in data.train.labels
    assert_read(data, sets["train"], sets["test"])
    data = load_data("svhn(extra=True)", root=tmp_path, download=False)
    both = [np.concatenate(pair) for pair in zip(sets["train"], sets["extra"], strict=True)]
    assert_read(data, (both[0], both[1]), sets["test"])


@pytest.mark.parametrize(
    ("file", "columns"),
    [
        ("cifar10/plain_text/{}-00000-of-00001.parquet", {"image": "img", "label": "label", "struct": True}),
        ("cifar10-{}.parquet", {"image": "image", "label": "labels", "struct": False}),
    ],
)
def test_parquet_files_of_the_hub_are_read(tmp_path: Path, file: str, columns: dict[str, Any]) -> None:
    sets = random_images(6), random_images(3, seed=1)
    for part, examples in zip(("train", "test"), sets, strict=True):
        write_parquet(tmp_path / file.format(part), *examples, **columns)
    data = load_data("cifar10", root=tmp_path, download=False)
    assert_read(data, *sets)
    assert "Parquet files of PNG images" in data.provenance


def test_smaller_images_are_means_of_squares(tmp_path: Path) -> None:
    *_, images, _ = write_cifar10(tmp_path)
    data = load_data("cifar10(side=8)", root=tmp_path, download=False)
    means = images.reshape(4, 3, 8, 4, 8, 4).mean((3, 5))
    np.testing.assert_allclose(stored_test_set(data)[0], means, atol=0.5)
    refused(tmp_path, "must divide their 32 pixels, got 5", "cifar10(side=5)", ValueError)
