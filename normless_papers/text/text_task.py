"""Labelled sentences as tokens, their batches, and the training of a network on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from normless.errors import DataFormatError
from normless.models import TRANSFORMERS, TokenNumbers, build_model, checkpoint_folder, text_classifier
from normless.saving import read_recipe
from normless.spec import format_call, parse_call
from normless_lab.data import Batch, epoch_sequence, load_data
from normless_lab.train import ClassificationTask, EpochRow, check_logits, saved_folder
from normless_papers.text.config import TextConfig, TextResult
from normless_papers.text.text_run import TextRun
from normless_papers.text.text_sets import LabelledText
from normless_papers.text.tokens import SPECIAL_TOKENS, BytePairs, Integers, padded, tensors

if TYPE_CHECKING:
    from lightning_fabric import Fabric

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json")


class LearnedTokens:
    """Byte pairs learned from a training text, each sentence between a start and an end.

    Attributes:
        size: number of tokens.
        padding: the token that fills up a batch.
        name: what they are, in words.
    """

    def __init__(self, pieces: BytePairs) -> None:
        self.pieces, self.size, self.padding = pieces, pieces.size, SPECIAL_TOKENS.padding
        self.name = f"{pieces.size} byte pairs"

    def encode(self, sentences: Sequence[str], longest: int) -> list[list[int]]:
        """Return the tokens of each sentence with its start and end, truncated to `longest` tokens in all."""
        encoded = self.pieces.encode(sentences)
        return [[SPECIAL_TOKENS.start, *tokens[: longest - 2], SPECIAL_TOKENS.end] for tokens in encoded]


class CheckpointTokens:
    """The tokenizer in the folder of a checkpoint, with its tokens around a sentence; as `LearnedTokens`.

    Raises:
        DataFormatError: the tokenizer cannot be read, or does not have a padding token.
        ModuleNotFoundError: transformers is not installed.
    """

    def __init__(self, folder: Path) -> None:
        library = import_module("transformers")
        try:
            tokenizer: Any = library.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
        # The library raises errors of many kinds.
        except Exception as error:
            raise DataFormatError(f"The tokenizer in {folder} cannot be read: {error}") from error
        # GPT-2 has no padding; what follows the end is masked, so the end serves as padding.
        padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        if padding is None:
            raise DataFormatError(f"The tokenizer in {folder} has neither a padding token nor an end token; add one.")
        self._tokenizer, self.size, self.padding = tokenizer, len(tokenizer), int(padding)
        self.name = f"the {self.size} tokens of the checkpoint"

    def encode(self, sentences: Sequence[str], longest: int) -> list[list[int]]:
        """Return the tokens of each sentence, as the checkpoint was trained on them."""
        tokens: list[list[int]] = self._tokenizer(list(sentences), truncation=True, max_length=longest)["input_ids"]
        return tokens


def has_tokenizer(folder: Path) -> bool:
    """Return whether the folder of a checkpoint contains a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


class TextData:
    """A labelled text in a vocabulary; a batch is tokens int64 [B, S], padded, and labels int64 [B].

    A sentence has at most `longest` tokens, special ones included; the rest is cut off. The order of an epoch is a
    pure function of (seed, epoch); the global generators are not used.

    Attributes:
        classes: number of classes.
        train_size, test_size: number of sentences.
        test_labels: classes of the test set, int64 [M], on the CPU.
        cut: number of training sentences that were cut.
    """

    def __init__(self, text: LabelledText, tokens: LearnedTokens | CheckpointTokens, *, longest: int) -> None:
        self.text, self.tokens, self.classes = text, tokens, len(text.classes)
        self._train, self._test = (
            tensors(tokens.encode(part.sentences, longest)) for part in (text.train, text.test)
        )
        self._train_labels, self.test_labels = torch.tensor(text.train.labels), torch.tensor(text.test.labels)
        self.train_size, self.test_size = len(self._train_labels), len(self.test_labels)
        self.cut = sum(len(sentence) > longest for sentence in tokens.encode(text.train.sentences, longest + 1))

    @cached_property
    def provenance(self) -> str:
        """One line for a table of results: the text's, the vocabulary, and what was cut."""
        cut = f", {self.cut} training sentences cut" if self.cut else ""
        return f"{self.text.provenance}; {self.tokens.name}{cut}"

    @property
    def longest_sentence(self) -> Tensor:
        """The longest sentence of both sets, int64 [1, S]."""
        return max([*self._train, *self._test], key=len)[None].clone()

    def steps_per_epoch(self, batch_size: int) -> int:
        """Number of training batches in an epoch: the whole ones, or one if the set is smaller than a batch."""
        return max(1, self.train_size // batch_size)

    def train_batches(
        self,
        batch_size: int,
        *,
        seed: int,
        epoch: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> Iterator[Batch]:
        """Return the batches of one epoch in random order, each padded to its longest sentence, as `ImageData`.

        Raises:
            ValueError: the batch cannot be shared evenly, or seed or epoch is negative.
        """
        whole, steps = min(batch_size, self.train_size), self.steps_per_epoch(batch_size)
        if whole < 1 or whole % world_size:
            raise ValueError(f"A batch of {whole} sentences cannot be shared evenly by {world_size} processes.")
        order = np.random.default_rng(epoch_sequence(seed, epoch)).permutation(self.train_size)
        parts = (np.split(rows, world_size)[rank] for rows in np.split(order[: whole * steps], steps))
        return (self._batch(self._train, self._train_labels, rows, device) for rows in parts)

    def test_batches(
        self, batch_size: int, *, device: torch.device | str = "cpu", rank: int = 0, world_size: int = 1
    ) -> Iterator[Batch]:
        """Return every test sentence once, the shortest first; shared as by `ImageData`."""
        order = np.argsort([len(sentence) for sentence in self._test], kind="stable")
        batches = (order[start : start + batch_size] for start in range(0, self.test_size, batch_size))
        parts = (np.array_split(rows, world_size)[rank] for rows in batches)
        return (self._batch(self._test, self.test_labels, rows, device) for rows in parts if len(rows))

    def _batch(self, part: list[Tensor], labels: Tensor, rows: Integers, device: torch.device | str) -> Batch:
        # Otherwise each batch waits for the work of the device.
        tokens, targets = padded(part, rows, self.tokens.padding), labels[torch.from_numpy(rows)]
        return Batch(tokens.to(device, non_blocking=True), targets.to(device, non_blocking=True))


class TextTask(TextRun[TextConfig], ClassificationTask[TextConfig]):
    """Classification of sentences by a transformer."""

    RESULT = TextResult

    data: TextData

    def load_data(self) -> TextData:
        """Load the labelled text, in tokens of a checkpoint, else in byte pairs, stored ones or those of the text."""
        config, folder = self.config, saved_folder(self.config.model)
        text = load_data(config.data, root=config.data_root, kind=LabelledText)
        original = None if folder is None else read_recipe(folder).model
        checkpoint = checkpoint_folder(original or config.model)
        if checkpoint is not None and has_tokenizer(checkpoint):
            return TextData(text, CheckpointTokens(checkpoint), longest=config.longest)
        pieces = self.byte_pairs(text.train.sentences, config.vocabulary)
        return TextData(text, LearnedTokens(pieces), longest=config.longest)

    def check(self, network: nn.Module, *, saved: bool) -> None:
        """Check that the network classifies the longest sentence."""
        data, longest = self.data, self.data.longest_sentence
        if saved:
            # The vocabulary may be larger than the saved network's.
            longest[0, 1] = data.tokens.size - 1
        what = f"the longest sentence of {data.text.name}, which has {longest.shape[1]} tokens of {data.tokens.size}"
        advice = (
            "Cut sentences by the setting longest, let the network have positions for them, or put the "
            "vocabulary.json of a saved network into its folder."
        )
        check_logits(self.config, network, (longest,), data.classes, what, advice)

    @property
    def warmup(self) -> int:
        """The steps over which the learning rate first rises linearly."""
        return round(self.config.warmup * (self.config.epochs * self.steps_per_epoch))

    def final_metrics(
        self, rows: Sequence[EpochRow], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Return test loss and accuracies at the end, the outcome, and what identifies the text."""
        metrics = super().final_metrics(rows, diverged, fabric, network)
        return metrics | self.about(self.data.text, self.data.tokens.size, "transformers")

    def original(self) -> nn.Module:
        """Build the network before its conversion, with the classes and tokens of the data."""
        model, tokens, classes = self.config.model, self.data.tokens, self.data.classes
        source, separator, call = model.strip().partition(":")
        if not separator or source in ("normless", "torchvision", "timm"):
            raise ValueError(
                "Expected transformers:KIND(…), transformers:FILE.json, transformers:FOLDER, FILE.py:FUNCTION or the "
                f"folder of a saved network, to classify sentences; got {model!r}."
            )
        if source == TRANSFORMERS:
            learned = isinstance(tokens, LearnedTokens)
            around = (SPECIAL_TOKENS.start, SPECIAL_TOKENS.end) if learned else (None, None)
            return text_classifier(call, classes=classes, tokens=TokenNumbers(tokens.size, tokens.padding, *around))
        name, arguments = parse_call(call)
        fitted = {"vocabulary": tokens.size, "classes": classes, "padding": tokens.padding} | arguments
        return build_model(format_call(f"{source}:{name}", fitted))
