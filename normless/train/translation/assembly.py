"""From a configuration to the pieces of a translation run: text, vocabulary, network, optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from normless.conversion import convert
from normless.data import SPECIAL_TOKENS, BytePairs, TranslationData, joint_vocabulary, load_parallel_text
from normless.models import build_model
from normless.schemes import parse_scheme
from normless.spec import parse_call
from normless.train.translation.config import TranslationConfig


def load_translation_data(config: TranslationConfig, vocabulary: BytePairs | None = None) -> TranslationData:
    """The parallel text that the configuration names, in a vocabulary.

    Args:
        config: of the run.
        vocabulary: that of a run which goes on; learned from the training pairs if None.

    Raises:
        ValueError: there is no such text, it has not these languages, or the vocabulary has no room for its bytes.
        DataNotFoundError: the text is not there.
    """
    named = {"source": config.source, "target": config.target}
    languages: dict[str, Any] = {name: language for name, language in named.items() if language is not None}
    text = load_parallel_text(config.data, root=config.data_root, **languages)
    return TranslationData(text, vocabulary or joint_vocabulary(text, config.vocabulary), longest=config.longest)


def example_sentences(config: TranslationConfig, data: TranslationData) -> tuple[Tensor, Tensor]:
    """Source (B, S) and target (B, T) of the first training batch."""
    batch = next(iter(data.train_batches(config.batch_tokens, seed=config.seed, epoch=0)))
    return batch.source, batch.target


def build_translator(config: TranslationConfig, data: TranslationData) -> nn.Module:
    """The converted network before training, on the CPU, a pure function of the configuration and the text.

    The global generator is seeded with the configuration's seed.

    Raises:
        ValueError: there is no such network or scheme, the network's text sets what the data decides, or it does not
            translate.
    """
    torch.manual_seed(config.seed)
    scheme = parse_scheme(config.scheme)
    network = build_model(_fitted_to(config.model, data.vocabulary.size))
    if not all(callable(getattr(network, name, None)) for name in ("encode", "decode")):
        raise ValueError(
            f"{config.model} is no network that translates: that has encode(source) and "
            "decode(tokens, memory, cache), as normless:transformer."
        )
    return convert(network, scheme, *example_sentences(config, data))


def _fitted_to(model: str, vocabulary: int) -> str:
    """The text of a model with the size of its vocabulary."""
    source, separator, call = model.strip().partition(":")
    if not separator:
        raise ValueError(f"Expected normless:transformer(…) or FILE.py:FUNCTION, got {model!r}.")
    name, arguments = parse_call(call)
    if "vocabulary" in arguments:
        raise ValueError(
            f"{model} sets vocabulary, which is the number of byte pairs of the text: leave it out there, and limit "
            "that number by the setting vocabulary of the run."
        )
    if arguments.get("padding", SPECIAL_TOKENS.padding) != SPECIAL_TOKENS.padding:
        raise ValueError(f"{model} sets padding, but the token that fills up sentences is {SPECIAL_TOKENS.padding}.")
    fitted = {**arguments, "vocabulary": vocabulary}
    return f"{source}:{name}({', '.join(f'{key}={value!r}' for key, value in fitted.items())})"
