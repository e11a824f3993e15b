"""Labelled images, labelled text and parallel text; an epoch of them is a pure function of the seed and the epoch."""

from typing import TYPE_CHECKING

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "Reading data sets", "PIL", "pyarrow", "scipy", "torchvision")

if TYPE_CHECKING:
    from normless.errors import DataFormatError as DataFormatError
    from normless.errors import DataNotFoundError as DataNotFoundError
    from normless_lab.data.byte_pairs import BytePairs as BytePairs
    from normless_lab.data.byte_pairs import stored_byte_pairs as stored_byte_pairs
    from normless_lab.data.images.augmentation import Augmentation as Augmentation
    from normless_lab.data.images.image_data import Batch as Batch
    from normless_lab.data.images.image_data import ImageData as ImageData
    from normless_lab.data.images.tensor_images import Split as Split
    from normless_lab.data.images.tensor_images import in_memory as in_memory
    from normless_lab.data.parallel.translation_batches import SetName as SetName
    from normless_lab.data.parallel.translation_batches import TranslationBatch as TranslationBatch
    from normless_lab.data.parallel.translation_batches import TranslationData as TranslationData
    from normless_lab.data.parallel.translation_batches import joint_vocabulary as joint_vocabulary
    from normless_lab.data.sources import DATA as DATA
    from normless_lab.data.sources import SOURCES as SOURCES
    from normless_lab.data.sources import TEXT_SOURCES as TEXT_SOURCES
    from normless_lab.data.sources import TRANSLATION_SOURCES as TRANSLATION_SOURCES
    from normless_lab.data.sources import default_root as default_root
    from normless_lab.data.sources import load_data as load_data
    from normless_lab.data.sources import load_labelled_text as load_labelled_text
    from normless_lab.data.sources import load_parallel_text as load_parallel_text
    from normless_lab.data.sources import sources_of as sources_of
    from normless_lab.data.text.text_batches import CheckpointTokens as CheckpointTokens
    from normless_lab.data.text.text_batches import LearnedTokens as LearnedTokens
    from normless_lab.data.text.text_batches import SentenceTokens as SentenceTokens
    from normless_lab.data.text.text_batches import TextData as TextData
    from normless_lab.data.text.text_batches import has_tokenizer as has_tokenizer
    from normless_lab.data.text_sets import LabelledText as LabelledText
    from normless_lab.data.text_sets import ParallelText as ParallelText
    from normless_lab.data.tokens import SPECIAL_TOKENS as SPECIAL_TOKENS
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
