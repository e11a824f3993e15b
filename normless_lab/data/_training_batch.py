"""The batch of a data set on which the commands of the library measure a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from normless_lab.data._augmentation import Augmentation
from normless_lab.data._sources import load_data


def training_batch(name: str, root: Path | None, size: int, seed: int) -> tuple[Any, Any, int]:
    """Return inputs and targets of at most `size` training images, and the number of classes.

    Errors are those of `load_data`.
    """
    source = load_data(name, root=root)
    size = min(size, source.train_size)
    batch = next(iter(source.train_batches(size, seed=seed, epoch=0, augmentation=Augmentation())))
    return batch.inputs, batch.targets, source.classes
