"""Labelled images, labelled text and parallel text; an epoch of them is a pure function of the seed and the epoch."""

from __future__ import annotations

from normless.data.augmentation import Augmentation
from normless.data.by_name import default_root
from normless.data.errors import DataFormatError, DataNotFoundError
from normless.data.images import Batch, ImageData
from normless.data.labelled_sources import TEXT_SOURCES, load_labelled_text
from normless.data.sources import SOURCES, load_data
from normless.data.text_data import TextData
from normless.data.translation import TranslationBatch, TranslationData
from normless.data.translation_sources import TRANSLATION_SOURCES, load_parallel_text

__all__ = [
    "SOURCES",
    "TEXT_SOURCES",
    "TRANSLATION_SOURCES",
    "Augmentation",
    "Batch",
    "DataFormatError",
    "DataNotFoundError",
    "ImageData",
    "TextData",
    "TranslationBatch",
    "TranslationData",
    "default_root",
    "load_data",
    "load_labelled_text",
    "load_parallel_text",
]
