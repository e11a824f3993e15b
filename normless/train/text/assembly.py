"""From a configuration to the pieces of a text run: sentences, tokens, network."""

from __future__ import annotations

import torch
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
from normless.lifting import evaluating
from normless.models import SOURCE, TokenNumbers, build_model, checkpoint_folder, text_classifier
from normless.schemes import parse_scheme
from normless.spec import parse_call
from normless.train.text.config import TextConfig


def load_text_data(config: TextConfig, vocabulary: BytePairs | None = None) -> TextData:
    """The labelled text that the configuration names, in tokens.

    Args:
        config: of the run.
        vocabulary: the byte pairs of a run which goes on; learned from the training sentences if None and the model
            is no checkpoint with a tokenizer.

    Raises:
        ValueError: there is no such text, or the vocabulary has no room for its bytes.
        DataNotFoundError: the text is not there.
    """
    text = load_labelled_text(config.data, root=config.data_root)
    return TextData(text, _tokens(config, text, vocabulary), longest=config.longest)


def _tokens(config: TextConfig, text: LabelledText, vocabulary: BytePairs | None) -> SentenceTokens:
    folder = checkpoint_folder(config.model)
    if folder is not None and has_tokenizer(folder):
        return CheckpointTokens(folder)
    return LearnedTokens(vocabulary or BytePairs.train(text.train.sentences, config.vocabulary))


def example_sentences(config: TextConfig, data: TextData) -> Tensor:
    """Tokens (B, S) of the first training batch."""
    return next(iter(data.train_batches(config.batch_size, seed=config.seed, epoch=0))).inputs


def build_classifier(config: TextConfig, data: TextData) -> nn.Module:
    """The converted network before training, on the CPU, a pure function of the configuration and its files.

    The global generator is seeded with the configuration's seed.

    Raises:
        ValueError: there is no such network or scheme, its text sets what the data decides, or it does not take the
            sentences.
    """
    torch.manual_seed(config.seed)
    scheme = parse_scheme(config.scheme)
    network = _original(config, data)
    _check(config, network, data)
    return convert(network, scheme, example_sentences(config, data))


def _original(config: TextConfig, data: TextData) -> nn.Module:
    """The network as it is written, with the classes and tokens of the data."""
    source, separator, call = config.model.strip().partition(":")
    if not separator or source in ("normless", "torchvision", "timm"):
        raise ValueError(
            "Expected transformers:KIND(…), transformers:FILE.json, transformers:FOLDER or FILE.py:FUNCTION, which "
            f"tell classes of sentences; got {config.model!r}."
        )
    tokens = data.tokens
    if source == SOURCE:
        learned = isinstance(tokens, LearnedTokens)
        around = (SPECIAL_TOKENS.start, SPECIAL_TOKENS.end) if learned else (None, None)
        return text_classifier(call, classes=data.classes, tokens=TokenNumbers(tokens.size, tokens.padding, *around))
    name, arguments = parse_call(call)
    fitted = {"vocabulary": tokens.size, "classes": data.classes, "padding": tokens.padding} | arguments
    return build_model(f"{source}:{name}({', '.join(f'{key}={value!r}' for key, value in fitted.items())})")


def _check(config: TextConfig, network: nn.Module, data: TextData) -> None:
    """See that the network takes the longest sentence and returns a logit for each class."""
    longest = data.longest_sentence
    try:
        with evaluating(network):
            logits = network(longest)
    except Exception as error:
        raise ValueError(
            f"{config.model} does not take the longest sentence of {data.text.name}, which has {longest.shape[1]} "
            f"tokens: {error}. Cut sentences by the setting longest, or let the network have positions for them."
        ) from error
    if not isinstance(logits, Tensor) or logits.shape != (1, data.classes):
        shape = "×".join(map(str, logits.shape)) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise ValueError(
            f"Expected 1×{data.classes} logits of {config.model} for a sentence of {data.text.name}, got {shape}."
        )
