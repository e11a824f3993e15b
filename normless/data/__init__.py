"""Labelled images and parallel text; an epoch of them is a pure function of the seed and the epoch."""

from __future__ import annotations

from normless.data.augmentation import Augmentation
from normless.data.by_name import default_root
from normless.data.errors import DataFormatError, DataNotFoundError
from normless.data.images import Batch, ImageData
from normless.data.sources import SOURCES, load_data
from normless.data.translation import TranslationBatch, TranslationData
from normless.data.translation_sources import TRANSLATION_SOURCES, load_parallel_text

__all__ = [
    "SOURCES",
    "TRANSLATION_SOURCES",
    "Augmentation",
    "Batch",
    "DataFormatError",
    "DataNotFoundError",
    "ImageData",
    "TranslationBatch",
    "TranslationData",
    "default_root",
    "load_data",
    "load_parallel_text",
]
