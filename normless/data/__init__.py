"""Labelled images and their augmentation, a pure function of the seed and the epoch."""

from __future__ import annotations

from normless.data.augmentation import Augmentation
from normless.data.errors import DataFormatError, DataNotFoundError
from normless.data.images import Batch, ImageData
from normless.data.sources import SOURCES, default_root, load_data

__all__ = [
    "SOURCES",
    "Augmentation",
    "Batch",
    "DataFormatError",
    "DataNotFoundError",
    "ImageData",
    "default_root",
    "load_data",
]
