"""The tokens of a classifier: byte pairs learned from the text, or a checkpoint's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from normless.data.byte_pairs import BytePairs
from normless.data.tokens import SPECIAL_TOKENS
from normless.errors import DataFormatError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")


class SentenceTokens(Protocol):
    """A vocabulary and the encoding of sentences in it.

    Attributes:
        size: number of tokens.
        padding: the token that fills up shorter sentences.
        name: in words.
    """

    size: int
    padding: int
    name: str

    def encode(self, sentences: Sequence[str], longest: int) -> list[list[int]]:
        """The tokens of each sentence with its start and end, its text truncated to `longest` tokens in all."""


class LearnedTokens:
    """Byte pairs learned from a training text, each sentence between a start and an end.

    Args:
        pieces: the byte pairs.
    """

    def __init__(self, pieces: BytePairs) -> None:
        self.pieces = pieces
        self.size = pieces.size
        self.padding = SPECIAL_TOKENS.padding
        self.name = f"{pieces.size} byte pairs"

    def encode(self, sentences: Sequence[str], longest: int) -> list[list[int]]:
        """The tokens of each sentence: start, those of its text, end."""
        return [
            [SPECIAL_TOKENS.start, *tokens[: longest - 2], SPECIAL_TOKENS.end]
            for tokens in self.pieces.encode(sentences)
        ]


class CheckpointTokens:
    """The tokenizer in the folder of a checkpoint, with its tokens around a sentence.

    Args:
        folder: of the checkpoint.

    Raises:
        DataFormatError: it cannot be read, or has no token for padding.
        ModuleNotFoundError: transformers is not installed.
    """

    def __init__(self, folder: Path) -> None:
        library = import_module("transformers")
        try:
            tokenizer: Any = library.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        # The library raises errors of many kinds.
        except Exception as error:
            raise DataFormatError(f"The tokenizer in {folder} cannot be read: {error}") from error
        # GPT-2 has no padding; what follows the end is masked, so the end serves as padding.
        padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        if padding is None:
            raise DataFormatError(f"The tokenizer in {folder} has neither a padding token nor an end token; add one.")
        self._tokenizer = tokenizer
        self.size = len(tokenizer)
        self.padding = int(padding)
        self.name = f"the {self.size} tokens of the checkpoint"

    def encode(self, sentences: Sequence[str], longest: int) -> list[list[int]]:
        """The tokens of each sentence, as the checkpoint was trained on them."""
        encoded = self._tokenizer(list(sentences), truncation=True, max_length=longest)
        tokens: list[list[int]] = encoded["input_ids"]
        return tokens


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder of a checkpoint has a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)
