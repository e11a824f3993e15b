"""The directory of a text run."""

from __future__ import annotations

from pathlib import Path

from normless.train.directory import Directory
from normless.train.text.config import TextConfig
from normless.train.text.result import TextResult


class TextDirectory(Directory[TextConfig, TextResult]):
    """Where a text run keeps its files; `vocabulary.json` holds its byte pairs, if it learned any."""

    CONFIG = TextConfig
    RESULT = TextResult

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.vocabulary = path / "vocabulary.json"

    def _files(self) -> list[Path]:
        return [*super()._files(), self.vocabulary]
