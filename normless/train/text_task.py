"""The training of a network on labelled sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from normless.conversion import convert
from normless.data import (
    SPECIAL_TOKENS,
    BytePairs,
    CheckpointTokens,
    LabelledText,
    LearnedTokens,
    SentenceTokens,
    TextData,
    has_tokenizer,
    load_labelled_text,
)
from normless.models import SOURCE, TokenNumbers, build_model, checkpoint_folder, text_classifier
from normless.schemes import parse_scheme
from normless.spec import format_call, parse_call
from normless.train.classification import ClassificationTask
from normless.train.config import TextConfig
from normless.train.directory import replaced
from normless.train.pretrained import load_saved, original_model, saved_folder, stored_vocabulary
from normless.train.result import EpochRow, TextResult
from normless.train.task import check_logits
from normless.train.versions import versions_of


class TextTask(ClassificationTask[TextConfig]):
    """A network on sentences, by Adam."""

    RESULT = TextResult

    data: TextData

    def load_data(self) -> TextData:
        """The labelled text that the configuration names, in tokens."""
        text = load_labelled_text(self.config.data, root=self.config.data_root)
        return TextData(text, self._tokens(text), longest=self.config.longest)

    def _tokens(self, text: LabelledText) -> SentenceTokens:
        """The tokens of a checkpoint, else the byte pairs of the run or a saved network, else those of the text."""
        checkpoint = checkpoint_folder(original_model(self.config.model))
        if checkpoint is not None and has_tokenizer(checkpoint):
            return CheckpointTokens(checkpoint)
        stored = stored_vocabulary(self.config, self.directory)
        return LearnedTokens(stored or BytePairs.train(text.train.sentences, self.config.vocabulary))

    def save_data(self) -> None:
        """Write the vocabulary if it was learned."""
        if isinstance(self.data.tokens, LearnedTokens):
            with replaced(self.directory.vocabulary) as part:
                self.data.tokens.pieces.save(part)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Tokens [B, S] of the first training batch."""
        return (next(self.train_batches(0)).inputs,)

    def build_network(self) -> nn.Module:
        """See `Task.build_network`; seeds the global generator with the configuration's seed."""
        config, data = self.config, self.data
        torch.manual_seed(config.seed)
        folder = saved_folder(config.model)
        if folder is not None:
            network = load_saved(config, folder)
            _check(config, network, data, highest=data.tokens.size - 1)
            return network
        scheme = parse_scheme(config.scheme)
        network = _original(config, data)
        _check(config, network, data)
        return convert(network, scheme, *self.example_inputs())

    @property
    def warmup(self) -> int:
        """The steps over which the learning rate first rises linearly."""
        return round(self.config.warmup * (self.config.epochs * self.steps_per_epoch))

    def final_metrics(
        self, rows: Sequence[EpochRow], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> dict[str, Any]:
        """Test loss and accuracies at the end, the outcome, and what identifies the text."""
        return super().final_metrics(rows, diverged, fabric, network) | {
            "vocabulary": self.data.tokens.size,
            "data_checksum": self.data.text.checksum,
            "seed": self.config.seed,
            "versions": versions_of("numpy", "tokenizers", "transformers"),
        }


def _original(config: TextConfig, data: TextData) -> nn.Module:
    """The network before its conversion, with the classes and tokens of the data."""
    source, separator, call = config.model.strip().partition(":")
    if not separator or source in ("normless", "torchvision", "timm"):
        raise ValueError(
            "Expected transformers:KIND(…), transformers:FILE.json, transformers:FOLDER, FILE.py:FUNCTION or the "
            f"folder of a saved network, to classify sentences; got {config.model!r}."
        )
    tokens = data.tokens
    if source == SOURCE:
        learned = isinstance(tokens, LearnedTokens)
        around = (SPECIAL_TOKENS.start, SPECIAL_TOKENS.end) if learned else (None, None)
        return text_classifier(call, classes=data.classes, tokens=TokenNumbers(tokens.size, tokens.padding, *around))
    name, arguments = parse_call(call)
    fitted = {"vocabulary": tokens.size, "classes": data.classes, "padding": tokens.padding} | arguments
    return build_model(format_call(f"{source}:{name}", fitted))


def _check(config: TextConfig, network: nn.Module, data: TextData, highest: int | None = None) -> None:
    """Check that the network takes the longest sentence, the highest token in it, and returns a logit per class."""
    longest = data.longest_sentence
    if highest is not None:
        longest[0, 1] = highest
    what = f"the longest sentence of {data.text.name}, which has {longest.shape[1]} tokens of {data.tokens.size}"
    advice = (
        "Cut sentences by the setting longest, let the network have positions for them, or put the vocabulary.json "
        "of a saved network into its folder."
    )
    check_logits(config, network, (longest,), data.classes, what, advice)
