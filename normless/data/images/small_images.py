"""Find a set of 32×32 colour images: official files, else Parquet, else a download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from normless.data.downloads import fetch_missing
from normless.data.images.augmentation import Augmentation
from normless.data.images.image_data import ImageData
from normless.data.images.parquet_images import read_parquet
from normless.data.images.tensor_images import Split, Splits, TensorImages
from normless.errors import DataNotFoundError

IMAGE_SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Recipe:
    """How one of the sets is found.

    Attributes:
        name: as `load_data` knows it, and the name of its folder under the root.
        classes: number of classes.
        layout: the official files, in words.
        read_official: reads them from a folder; None where it does not hold them.
        fetch: downloads them into a folder.
        parquet_folders: where in its repository the Hub keeps the set's Parquet files.
        label_columns: names a Parquet file may give to the labels, the first found being taken.
        default_augmentation: what the papers use.
    """

    name: str
    classes: int
    layout: str
    read_official: Callable[[Path], Splits | None]
    fetch: Callable[[Path], None]
    parquet_folders: tuple[str, ...]
    label_columns: tuple[str, ...]
    default_augmentation: Augmentation


def load_small_images(recipe: Recipe, root: Path, *, download: bool, side: int = IMAGE_SHAPE[1]) -> ImageData:
    """Load the set from ``root/name`` or ``root``, downloading it into ``root/name`` when it is in neither.

    Args:
        recipe: which set.
        root: where it lies or goes.
        download: whether it may be downloaded.
        side: of the images that come out, in pixels: each is the mean over a square of the stored ones.

    Raises:
        ValueError: the side does not divide that of the stored images.
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a file does not hold what it should.
    """
    if not isinstance(side, int) or side < 1 or IMAGE_SHAPE[1] % side:
        raise ValueError(
            f"The side of {recipe.name}'s images must divide their {IMAGE_SHAPE[1]} pixels, got {side!r}."
        )
    splits, source = _stored(recipe, root) or _fetched(recipe, root, download=download)
    if side != IMAGE_SHAPE[1]:
        splits = Splits(*(_averaged(split, side) for split in splits))
        source = f"{source}, averaged to {side}×{side}"
    return TensorImages(
        splits,
        name=recipe.name,
        classes=recipe.classes,
        source=source,
        default_augmentation=recipe.default_augmentation,
    )


def _averaged(split: Split, side: int) -> Split:
    """The same images with smaller sides: means over squares, rounded to bytes."""
    means = [F.adaptive_avg_pool2d(part.float(), side) for part in torch.split(split.images, 1000)]
    return Split(torch.cat([mean.round().to(torch.uint8) for mean in means]), split.labels)


def _stored(recipe: Recipe, root: Path) -> tuple[Splits, str] | None:
    folders = (root / recipe.name, root)
    for folder in folders:
        splits = recipe.read_official(folder)
        if splits is not None:
            return splits, "official files"
    for folder in (folder / below for folder in folders for below in (".", *recipe.parquet_folders)):
        splits_and_source = read_parquet(
            folder,
            recipe.name,
            classes=recipe.classes,
            image_shape=IMAGE_SHAPE,
            label_columns=recipe.label_columns,
        )
        if splits_and_source is not None:
            return splits_and_source
    return None


def _fetched(recipe: Recipe, root: Path, *, download: bool) -> tuple[Splits, str]:
    folder = root / recipe.name
    looked = (
        f"The data set {recipe.name} is not in {folder} or {root}, neither as its official files "
        f"({recipe.layout}) nor as Parquet (*train*.parquet and *test*.parquet)"
    )
    by_hand = f"Put either by hand into {folder}, or name the folder that holds them with root."
    fetch_missing(looked, by_hand, lambda: recipe.fetch(folder), download=download)
    splits = recipe.read_official(folder)
    if splits is None:
        raise DataNotFoundError(f"The download of {recipe.name} into {folder} lacks {recipe.layout}. {by_hand}")
    return splits, "official files"
