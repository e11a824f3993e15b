"""The training of a network on labelled sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from normless.models import TRANSFORMERS, TokenNumbers, build_model, checkpoint_folder, text_classifier
from normless.saving import read_recipe
from normless.spec import format_call, parse_call
from normless_lab.data import load_data
from normless_lab.train import ClassificationTask, EpochRow, check_logits, saved_folder
from normless_lab.train.fabric import Fabric
from normless_papers.text.config import TextConfig
from normless_papers.text.results import TextResult
from normless_papers.text.text_batches import CheckpointTokens, LearnedTokens, TextData, has_tokenizer
from normless_papers.text.text_run import TextRun
from normless_papers.text.text_sets import LabelledText
from normless_papers.text.tokens import SPECIAL_TOKENS


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
