"""The directory of a translation run."""

from __future__ import annotations

from pathlib import Path

from normless.train.directory import Directory
from normless.train.translation.config import TranslationConfig
from normless.train.translation.result import TranslationResult


class TranslationDirectory(Directory[TranslationConfig, TranslationResult]):
    """Where a translation run keeps its files.

    `vocabulary.json` holds its byte pairs, for ``tokenizers``, and `translations.txt` what beam search made of the
    test set in the end, line by line.
    """

    CONFIG = TranslationConfig
    RESULT = TranslationResult

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.vocabulary = path / "vocabulary.json"
        self.translations = path / "translations.txt"

    def _files(self) -> list[Path]:
        return [*super()._files(), self.vocabulary, self.translations]
