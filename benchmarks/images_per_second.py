"""Images per second of augmentation and decoding, relative to torchvision's transforms in torch's DataLoader."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jsonargparse import auto_cli
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from normless_lab.bench._step import ratio_table, seconds_in_turns
from normless_lab.data import Augmentation, ImageData, load_data
from normless_lab.data._image_data import Split, in_memory

OURS, RIVAL = "normless", "torchvision"
WORKERS = 2


@dataclass(frozen=True)
class DataBench:
    """An epoch of random images [3, image_size, image_size] in batches, by this package and by torchvision.

    `images` is the number of images in memory, `files` the number of JPEG files of 320×256 pixels that are decoded
    and cropped to 224 pixels; 0 leaves either out. torchvision has two workers.
    """

    images: int = 10_000
    files: int = 400
    batch_size: int = 128
    image_size: int = 32
    rounds: int = 5


def measure_data(bench: DataBench) -> pd.DataFrame:
    """Time whole epochs; the start of workers counts where they do not persist.

    A row per loader: task, loader, images_per_second (median), and as in `ratio_table` the ratio of images per second
    to torchvision's in the same round.
    """
    from torchvision import datasets
    from torchvision.transforms import v2 as transforms

    tables = []
    if bench.images:
        memory, usual = _images_in_memory(bench), Augmentation(crop=4, flip=True)
        standard = [
            transforms.RandomCrop(bench.image_size, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize(memory.mean.tolist(), memory.std.tolist()),
        ]
        erasing = transforms.RandomErasing(p=1.0, scale=(0.06, 0.06), ratio=(1.0, 1.0))
        mixup = transforms.MixUp(alpha=0.2, num_classes=10)
        for task, augmentation, steps, mix in (
            ("crop, flip", usual, standard, None),
            ("crop, flip, cutout", replace(usual, cutout=8), [*standard, erasing], None),
            ("crop, flip, cutout, mixup", replace(usual, cutout=8, mixup=0.2), [*standard, erasing], mixup),
        ):
            rival = _exhausted(_loader(bench, memory, steps), mix)
            tables.append(
                _in_turns(task, bench, bench.images, _epochs(memory, bench.batch_size, augmentation), rival)
            )
    if bench.files:
        with _jpeg_folder(bench.files) as folder:
            data = load_data("image_folder", root=folder)
            transform = transforms.Compose(
                [
                    transforms.RandomResizedCrop(224, antialias=True),
                    transforms.RandomHorizontalFlip(),
                    transforms.PILToTensor(),
                    transforms.ToDtype(torch.float32, scale=True),
                    transforms.Normalize(data.mean.tolist(), data.std.tolist()),
                ]
            )
            decoded = datasets.ImageFolder(str(folder / "train"), transform=transform)
            ours = _epochs(data, bench.batch_size, Augmentation(flip=True))
            rival = _exhausted(_made(decoded, bench.batch_size))
            tables.append(_in_turns("decode, crop, flip", bench, bench.files, ours, rival))
    return pd.concat(tables, ignore_index=True)


def _in_turns(
    task: str, bench: DataBench, images: int, ours: Callable[[], None], rival: Callable[[], None]
) -> pd.DataFrame:
    seconds = seconds_in_turns({OURS: ours, RIVAL: rival}, bench.rounds)
    table = ratio_table("loader", seconds, seconds.rdiv(seconds[RIVAL], axis=0))
    table.insert(0, "task", task)
    table.insert(2, "images_per_second", images / table.pop("seconds"))
    return table


def _images_in_memory(bench: DataBench) -> ImageData:
    generator = torch.Generator().manual_seed(0)
    shape = (bench.images, 3, bench.image_size, bench.image_size)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    split = Split(images, torch.arange(bench.images) % 10)
    return in_memory("random", "random bytes", split, Split(images[:1], split.labels[:1]), classes=10)


def _epochs(data: ImageData, batch_size: int, augmentation: Augmentation) -> Callable[[], None]:
    """Return a function that makes all batches of the next epoch."""
    epochs = iter(range(10**9))

    def run() -> None:
        for _ in data.train_batches(batch_size, seed=0, epoch=next(epochs), augmentation=augmentation):
            pass

    return run


class _Transformed(Dataset[tuple[Tensor, int]]):
    """Images in memory, transformed one at a time by torchvision."""

    def __init__(self, images: Tensor, labels: Sequence[int], transform: Any) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.images[index]), self.labels[index]


def _loader(bench: DataBench, data: Any, steps: Sequence[Any]) -> DataLoader[Any]:
    from torchvision.transforms import v2 as transforms

    images = _Transformed(data.train.images, data.train.labels.tolist(), transforms.Compose(list(steps)))
    return _made(images, bench.batch_size)


def _made(dataset: Dataset[Any], batch_size: int) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size, shuffle=True, num_workers=WORKERS, persistent_workers=True)


def _exhausted(loader: DataLoader[Any], after: Any = None) -> Callable[[], None]:
    """Return a function that makes all batches of an epoch and passes each to `after`."""

    def run() -> None:
        for images, labels in loader:
            if after is not None:
                after(images, labels)

    return run


@contextmanager
def _jpeg_folder(files: int) -> Iterator[Path]:
    """Yield a folder with class folders of smooth random JPEG images for training and testing."""
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as root:
        for part, count in (("train", files), ("val", 2)):
            for index in range(count):
                folder = Path(root, part, str(index % 2))
                folder.mkdir(parents=True, exist_ok=True)
                coarse = torch.rand(1, 3, 8, 10, generator=generator) * 255
                smooth = torch.nn.functional.interpolate(coarse, (256, 320), mode="bicubic").clamp(0, 255)
                pixels = smooth[0].permute(1, 2, 0).byte().numpy()
                Image.fromarray(pixels).save(folder / f"{index}.jpg", quality=90)
        yield Path(root)


if __name__ == "__main__":
    sys.stdout.write(measure_data(auto_cli(DataBench)).to_string(index=False) + "\n")
