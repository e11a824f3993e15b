"""The training of a network on labelled sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from normless import schemes
from normless.conversion import convert
from normless.models import TRANSFORMERS, TokenNumbers, build_model, checkpoint_folder, text_classifier
from normless.saving import read_recipe
from normless.spec import format_call, parse_call
from normless_lab.data import (
    SPECIAL_TOKENS,
    BytePairs,
    CheckpointTokens,
    LearnedTokens,
    TextData,
    has_tokenizer,
    load_labelled_text,
)
from normless_lab.train.classification import ClassificationTask
from normless_lab.train.config import TextConfig
from normless_lab.train.result import EpochRow, TextResult, versions_of
from normless_lab.train.task import check_logits, few, load_saved, saved_folder
from normless_lab.train.turns import Steps


class TextTask(ClassificationTask[TextConfig]):
    """A network on sentences, by Adam."""

    RESULT = TextResult

    data: TextData

    def load_data(self) -> TextData:
        """The labelled text, in tokens of a checkpoint, else in byte pairs, stored ones or those of the text."""
        config, folder = self.config, saved_folder(self.config.model)
        text = load_labelled_text(config.data, root=config.data_root)
        original = None if folder is None else read_recipe(folder).model
        checkpoint = checkpoint_folder(original or config.model)
        if checkpoint is not None and has_tokenizer(checkpoint):
            return TextData(text, CheckpointTokens(checkpoint), longest=config.longest)
        self.vocabulary = self.stored_vocabulary() or BytePairs.train(text.train.sentences, config.vocabulary)
        return TextData(text, LearnedTokens(self.vocabulary), longest=config.longest)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Tokens [B, S] of the first training batch."""
        return (next(self.train_batches(0)).inputs,)

    def build_network(self) -> nn.Module:
        """See `Task.build_network`."""
        config, data = self.config, self.data
        torch.manual_seed(config.seed)
        folder, longest = saved_folder(config.model), data.longest_sentence
        scheme = schemes.scheme(config.scheme)
        network = _original(config, data) if folder is None else load_saved(config, folder)
        if folder is not None:
            # The vocabulary may be larger than the saved network's.
            longest[0, 1] = data.tokens.size - 1
        what = f"the longest sentence of {data.text.name}, which has {longest.shape[1]} tokens of {data.tokens.size}"
        advice = (
            "Cut sentences by the setting longest, let the network have positions for them, or put the "
            "vocabulary.json of a saved network into its folder."
        )
        check_logits(config, network, (longest,), data.classes, what, advice)
        if folder is not None:
            return network
        inputs = self.example_inputs()
        return convert(network, scheme, *inputs, check_inputs=few(*inputs), in_place=True)

    @property
    def warmup(self) -> int:
        """The steps over which the learning rate first rises linearly."""
        return round(self.config.warmup * (self.config.epochs * self.steps_per_epoch))

    def final_metrics(
        self, rows: Sequence[EpochRow], diverged: bool, fabric: Fabric, network: nn.Module
    ) -> Steps[dict[str, Any]]:
        """Test loss and accuracies at the end, the outcome, and what identifies the text."""
        metrics = yield from super().final_metrics(rows, diverged, fabric, network)
        return metrics | {
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
    if source == TRANSFORMERS:
        learned = isinstance(tokens, LearnedTokens)
        around = (SPECIAL_TOKENS.start, SPECIAL_TOKENS.end) if learned else (None, None)
        return text_classifier(call, classes=data.classes, tokens=TokenNumbers(tokens.size, tokens.padding, *around))
    name, arguments = parse_call(call)
    fitted = {"vocabulary": tokens.size, "classes": data.classes, "padding": tokens.padding} | arguments
    return build_model(format_call(f"{source}:{name}", fitted))
