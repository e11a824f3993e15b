from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normless_lab.data import Augmentation, DataFormatError, DataNotFoundError, ImageData, load_data


def stored(data: ImageData) -> list[Any]:
    """Bytes and labels of both sets, read back out of normalized batches."""
    test = list(data.test_batches(99, device="cpu"))
    mean, std = (values[:, None, None] for values in (data.mean, data.std))
    images = ((test[0].inputs * std + mean) * 255).round().byte().numpy()
    return [images, test[0].targets.numpy()]


@pytest.mark.parametrize("place", ["cifar10/cifar-10-batches-py", "cifar-10-batches-py", "."])
def test_cifar10_is_read_wherever_its_official_files_lie(
    tmp_path: Path, place: str, write_cifar10: Callable[[Path], list[Any]]
) -> None:
    images, labels, test_images, test_labels = write_cifar10(tmp_path / place)
    data = load_data("cifar10", root=tmp_path, download=False)
    assert (data.name, data.classes, data.image_shape) == ("cifar10", 10, (3, 32, 32))
    assert data.default_augmentation == Augmentation(crop=4, flip=True)
    assert data.train_labels.tolist() == labels.tolist()
    np.testing.assert_allclose(data.mean.numpy(), (images / 255).mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_array_equal(stored(data)[0], test_images)
    np.testing.assert_array_equal(stored(data)[1], test_labels)
    assert "official files; 10 train / 4 test" in data.provenance
    assert str(tmp_path) not in data.provenance


@pytest.mark.parametrize(
    ("name", "classes", "key"), [("cifar100", 100, "fine"), ("cifar100(coarse=True)", 20, "coarse")]
)
def test_cifar100_has_fine_and_coarse_labels(
    tmp_path: Path, name: str, classes: int, key: str, random_images: Any, write_batch: Any
) -> None:
    labels = {}
    for split, n in (("train", 6), ("test", 3)):
        images, fine = random_images(n, classes=100, seed=n)
        labels[split] = {"fine": fine, "coarse": fine % 20}
        write_batch(
            tmp_path / "cifar-100-python" / split, images, fine_labels=fine, coarse_labels=labels[split]["coarse"]
        )
    data = load_data(name, root=tmp_path, download=False)
    assert (data.name, data.classes) == ("cifar100", classes)
    assert data.train_labels.tolist() == labels["train"][key].tolist()
    np.testing.assert_array_equal(stored(data)[1], labels["test"][key])


def test_malformed_batches_are_refused_by_name(
    tmp_path: Path, write_cifar10: Any, write_batch: Any, random_images: Any
) -> None:
    write_cifar10(tmp_path)
    images, labels = random_images(2)
    batch = tmp_path / "data_batch_2"
    write_batch(batch, images[:, :, :16], labels=labels)
    with pytest.raises(DataFormatError, match=r"data_batch_2 has no 'data' with a row of 3072"):
        load_data("cifar10", root=tmp_path)
    write_batch(batch, images, fine_labels=labels)
    with pytest.raises(DataFormatError, match="data_batch_2 has no list of numbers named 'labels'"):
        load_data("cifar10", root=tmp_path)
    write_batch(batch, images, labels=labels[:1])
    with pytest.raises(DataFormatError, match="expected one each"):
        load_data("cifar10", root=tmp_path)
    write_batch(batch, images, labels=labels + 10)
    with pytest.raises(DataFormatError, match="expected 0 to 9"):
        load_data("cifar10", root=tmp_path)


def test_absent_files_are_told_with_where_and_how(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError) as caught:
        load_data("cifar10", root=tmp_path, download=False)
    message = str(caught.value)
    for part in (
        str(tmp_path / "cifar10"),
        "data_batch_1",
        "*train*.parquet",
        "switched off",
        "by hand",
        "by --data-root (data_root in",
    ):
        assert part in message
    assert list(tmp_path.iterdir()) == []
