"""Runs on text, a plugin of the training loop: classification of sentences, translation, and their data sets.

The names below are imported on first use, so that the command line can show its help without importing torch.
"""

from typing import TYPE_CHECKING

from normless.lazy import attach

if TYPE_CHECKING:
    from normless_papers.text.config import TextConfig as TextConfig
    from normless_papers.text.config import TextResult as TextResult
    from normless_papers.text.config import TranslationConfig as TranslationConfig
    from normless_papers.text.config import TranslationResult as TranslationResult
    from normless_papers.text.kinds import TRAIN_TEXT as TRAIN_TEXT
    from normless_papers.text.kinds import TRAIN_TRANSLATION as TRAIN_TRANSLATION
    from normless_papers.text.text_sets import LabelledText as LabelledText
    from normless_papers.text.text_sets import ParallelText as ParallelText
    from normless_papers.text.text_task import TextData as TextData
    from normless_papers.text.tokens import BytePairs as BytePairs
    from normless_papers.text.translating import beam_search as beam_search
    from normless_papers.text.translating import bleu as bleu
    from normless_papers.text.translating import translate as translate
    from normless_papers.text.translation_batches import TranslationData as TranslationData
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
