"""Tiny image sets in the layouts of the real ones, each filled with random bytes."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def random_images(n: int, *, classes: int = 10, seed: int = 0) -> tuple[Images, Labels]:
    """Images [n, 3, 32, 32] and labels below ``classes``, different for each seed."""
    generator = np.random.default_rng(seed)
    images = generator.integers(256, size=(n, 3, 32, 32), dtype=np.uint8)
    return images, generator.integers(classes, size=n)


def write_batch(path: Path, images: Images, **labels: Labels) -> None:
    """Write a CIFAR batch as the official files are, bytes as keys."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[bytes, Any] = {name.encode(): values.tolist() for name, values in labels.items()}
    content |= {b"data": images.reshape(len(images), -1), b"batch_label": b"a batch", b"filenames": [b"a.png"]}
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_cifar10(folder: Path) -> list[Any]:
    """Write ten training images in five batches and four test images; return the arrays."""
    images, labels = random_images(10)
    test_images, test_labels = random_images(4, seed=1)
    for number in range(5):
        part = slice(2 * number, 2 * number + 2)
        write_batch(folder / f"data_batch_{number + 1}", images[part], labels=labels[part])
    write_batch(folder / "test_batch", test_images, labels=test_labels)
    return [images, labels, test_images, test_labels]


def encode(image: Images) -> bytes:
    """One image [3, H, W] as the bytes of a file."""
    buffer = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(path: Path, images: Images, labels: Labels, *, image: str, label: str, struct: bool) -> None:
    """Write images and labels as the Hub does, the image a struct or plain bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = [encode(one) for one in images]
    column = pa.array([{"bytes": one, "path": None} for one in encoded]) if struct else pa.array(encoded)
    pq.write_table(pa.table({image: column, label: pa.array(labels)}), path)
