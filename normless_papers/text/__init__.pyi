from .config import (
    TextConfig as TextConfig,
    TextResult as TextResult,
    TranslationConfig as TranslationConfig,
    TranslationResult as TranslationResult,
)
from .kinds import TRAIN_TEXT as TRAIN_TEXT, TRAIN_TRANSLATION as TRAIN_TRANSLATION
from .text_sets import LabelledText as LabelledText, ParallelText as ParallelText
from .text_task import TextData as TextData
from .tokens import BytePairs as BytePairs
from .translating import beam_search as beam_search, bleu as bleu, translate as translate
from .translation_batches import TranslationData as TranslationData
