from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normless_lab.data import DataFormatError, ImageData, load_data


def bytes_of_test(data: ImageData) -> Any:
    (batch,) = data.test_batches(99, device="cpu")
    pixels = (batch.inputs * data.std[:, None, None] + data.mean[:, None, None]) * 255
    return pixels.round().byte().numpy()


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("cifar10-train.parquet", "cifar10-test.parquet"),
        ("cifar10/train-00000-of-00001.parquet", "cifar10/test-00000-of-00001.parquet"),
        ("cifar10/plain_text/train-00000-of-00001.parquet", "cifar10/plain_text/test-00000-of-00001.parquet"),
        ("data/train.parquet", "data/test.parquet"),
    ],
)
@pytest.mark.parametrize(("image", "label", "struct"), [("img", "label", True), ("image", "labels", False)])
def test_hub_files_are_read(
    tmp_path: Path,
    train: str,
    test: str,
    image: str,
    label: str,
    struct: bool,
    random_images: Any,
    write_parquet: Any,
) -> None:
    train_set, test_set = random_images(6), random_images(3, seed=1)
    columns = {"image": image, "label": label, "struct": struct}
    write_parquet(tmp_path / train, *train_set, **columns)
    write_parquet(tmp_path / test, *test_set, **columns)
    data = load_data("cifar10", root=tmp_path, download=False)
    assert data.train_labels.tolist() == train_set[1].tolist()
    np.testing.assert_allclose(data.mean.numpy(), (train_set[0] / 255).mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_array_equal(bytes_of_test(data), test_set[0])
    assert "Parquet files of PNG images" in data.provenance


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"image": [b"x"], "kind": [1]}, "no column of labels: expected label or labels, found image, kind"),
        ({"picture": [b"x"], "label": [1]}, "no column of images: expected image or img"),
        ({"image": ["a.png"], "label": [1]}, "Column image of .* has 'a.png'; expected bytes"),
        ({"image": [b"x"], "label": ["cat"]}, "Column label of .*; expected integers"),
        ({"image": [b"x"], "label": [None]}, "Column label of .* expected integers"),
        ({"image": [b"x"], "label": [1]}, "Cannot decode the image in row 0"),
        ({"image": [{"bytes": None, "path": "a.png"}], "label": [1]}, "a path alone is not enough|expected bytes"),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, table: dict[str, Any], message: str) -> None:
    for kind in ("train", "test"):
        pq.write_table(pa.table(table), tmp_path / f"{kind}.parquet")
    with pytest.raises(DataFormatError, match=message):
        load_data("cifar10", root=tmp_path)


def test_wrong_files_are_named(tmp_path: Path, random_images: Any, write_parquet: Any) -> None:
    images, labels = random_images(3)
    train, test = tmp_path / "latest-train.parquet", tmp_path / "test.parquet"
    write_parquet(train, images, labels)
    with pytest.raises(DataFormatError, match=r"no \*test\*.parquet beside"):
        load_data("cifar10", root=tmp_path)
    write_parquet(test, images[:, :, :16], labels)
    with pytest.raises(DataFormatError, match=r"row 0 .* it is 32×16 pixels, expected 32×32"):
        load_data("cifar10", root=tmp_path)
    write_parquet(test, images, labels + 7)
    with pytest.raises(DataFormatError, match=r"test.parquet has labels .* Is it a different data set"):
        load_data("cifar10", root=tmp_path)
    test.write_bytes(b"PAR1 but not really")
    with pytest.raises(DataFormatError, match=r"test.parquet is not a Parquet file"):
        load_data("cifar10", root=tmp_path)
    write_parquet(tmp_path / "my-train.parquet", images, labels)
    with pytest.raises(DataFormatError, match="several train sets"):
        load_data("cifar10", root=tmp_path)
