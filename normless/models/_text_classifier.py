"""Text classifiers of Hugging Face's transformers, from a configuration or a local checkpoint."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normless.code_names import names_of_data
from normless.exclusive import borrowing
from normless.extras import import_extra
from normless.models._downloads import refuse_downloads
from normless.registry import did_you_mean
from normless.spec import parse_call

TRANSFORMERS = "transformers"
WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")


class TokenNumbers(NamedTuple):
    """The number of tokens, the padding, and the tokens around each sentence; None if a checkpoint has its own."""

    vocabulary: int
    padding: int
    start: int | None = None
    end: int | None = None


class TextClassifier(nn.Module):
    """A sentence classifier of ``transformers`` that masks the `padding`.

    Shapes: tokens (B, S), int64, to logits (B, classes).
    """

    def __init__(self, network: nn.Module, padding: int) -> None:
        super().__init__()
        self.network = network
        self.padding = padding
        # Cached keys and values are only needed to generate text.
        takes = inspect.signature(network.forward).parameters
        self._fixed = {"use_cache": False} if "use_cache" in takes else {}

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of sentences."""
        mask = (tokens != self.padding).long()
        logits: Tensor = self.network(input_ids=tokens, attention_mask=mask, **self._fixed).logits
        return logits

    def example_inputs(self) -> tuple[Tensor]:
        """Return fixed random sentences, shape (2, 7), without padding."""
        embedding: Any = self.network.get_input_embeddings()  # type: ignore[operator]
        config: Any = self.network.config
        end = getattr(config, "eos_token_id", None)
        free = torch.tensor([token for token in range(len(embedding.weight)) if token not in (self.padding, end)])
        tokens = free[torch.randint(len(free), (2, 7), generator=torch.Generator().manual_seed(0))]
        if end is not None:
            tokens[:, -1] = end
        return (tokens.to(embedding.weight.device),)


def text_classifier(text: str, *, classes: int | None = None, tokens: TokenNumbers | None = None) -> TextClassifier:
    """Build the classifier that a text names; nothing is downloaded.

    Args:
        text: after ``transformers:``: a kind of model with settings of its configuration, as
            ``bert(num_hidden_layers=2, hidden_size=64)``; the JSON file of a configuration; or the folder of a
            checkpoint with weights in safetensors.
        classes: number of logits; the configuration's own if None.
        tokens: the tokens of the data; those of the configuration if None.

    Raises:
        ValueError: the kind, setting, file or checkpoint does not exist or does not fit the data.
        UntrustedCodeError: a file names weights or code of others, see `refuse_downloads`.
        MissingExtraError: transformers is not installed.
    """
    library = import_extra("zoo", f"transformers:{text.strip()}", TRANSFORMERS)
    path = Path(text.strip())
    with _quiet():
        folder = path if is_path(text) and path.suffix != ".json" else None
        config = _read_config(library, path) if is_path(text) else _named_config(library, *parse_call(text))
        if classes is not None:
            config.num_labels = classes
        if tokens is not None:
            _fit(config, tokens, text, checkpoint=folder is not None)
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0
        if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = config.pad_token_id
        network = _network(library, text, folder, config)
    return TextClassifier(network.to(torch.get_default_dtype()), int(config.pad_token_id))


def is_path(call: str) -> bool:
    """Whether the text after ``transformers:`` is a file or folder, not a kind of model."""
    call = call.strip()
    return call.endswith(".json") or "/" in call.partition("(")[0] or os.path.isdir(call)  # noqa: PTH112 - pathlib raises for a text that is too long for a path


def checkpoint_folder(model: str) -> Path | None:
    """Return the folder of the checkpoint in the text of a model, or None."""
    source, _, rest = model.strip().partition(":")
    return (
        Path(rest.strip())
        if source == TRANSFORMERS and is_path(rest) and not rest.strip().endswith(".json")
        else None
    )


@borrowing
def _quiet() -> Iterator[None]:
    """Suppress progress bars and warnings of the library, such as that a new classifier has random weights."""
    logging: Any = import_module(f"{TRANSFORMERS}.utils.logging")
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _named_config(library: Any, kind: str, settings: Mapping[str, Any]) -> Any:
    """Return the configuration of a kind of model with given settings."""
    try:
        plain = library.AutoConfig.for_model(kind)
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"transformers has no kind of model {kind!r}.{did_you_mean(kind, library.CONFIG_MAPPING)} Examples "
            "are bert, distilbert, roberta, gpt2 and t5; transformers:FOLDER or transformers:FILE.json names a model "
            "on this machine."
        ) from error
    unknown = [name for name in settings if not hasattr(plain, name)]
    if unknown:
        raise ValueError(
            f"The configuration of {kind} in transformers has no setting {', '.join(unknown)}; it has "
            f"{', '.join(sorted(set(plain.to_dict()) | set(plain.attribute_map)))}."
        )
    try:
        return library.AutoConfig.for_model(kind, **settings)
    except Exception as error:  # of types that differ by version
        raise ValueError(f"transformers refuses the settings of {kind}: {error}") from error


def _read_config(library: Any, path: Path) -> Any:
    """Read the configuration in a file, or in the folder of a checkpoint."""
    is_file = path.suffix == ".json"
    file = path if is_file else path / "config.json"
    if not file.is_file():
        raise ValueError(
            f"There is no file {file}: expected the folder of a checkpoint of transformers, or the JSON file of a "
            "configuration. Nothing is downloaded."
        )
    if not is_file and not any((path / name).is_file() for name in WEIGHT_FILES):
        raise ValueError(
            f"{path} has no {WEIGHT_FILES[0]}; other weight files are not opened, since that may run code. "
            f"Save the model with save_pretrained, or name {file} for a network with random weights."
        )
    with names_of_data(file):
        refuse_downloads(str(file), "", _stated(file))
    try:
        # Without a value, a person at a terminal is asked whether code of the configuration may be executed.
        return library.AutoConfig.from_pretrained(str(file), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of types that differ by version
        raise ValueError(f"{file} is not a configuration of a transformers model: {error}") from error


def _stated(file: Path) -> Any:
    """Return what a file of JSON states, or nothing if it is none."""
    try:
        stated = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return {}  # transformers says what is wrong with it.
    return {key: value for key, value in stated.items() if key != "auto_map"} if isinstance(stated, dict) else {}


def _fit(config: Any, tokens: TokenNumbers, text: str, *, checkpoint: bool) -> None:
    """Give a configuration the tokens of the data."""
    config.pad_token_id = tokens.padding
    if checkpoint:
        if tokens.vocabulary > config.vocab_size:
            raise ValueError(
                f"The checkpoint {text} has {config.vocab_size} tokens, but the data have {tokens.vocabulary}; "
                "limit them by the setting vocabulary of the run."
            )
        return
    config.vocab_size = tokens.vocabulary
    for token, names in ((tokens.start, ("bos", "cls")), (tokens.end, ("eos", "sep"))):
        for name in (f"{name}_token_id" for name in names):
            if token is not None and hasattr(config, name):
                setattr(config, name, token)


def _network(library: Any, text: str, folder: Path | None, config: Any) -> nn.Module:
    """Create a network with random weights, or with those of a checkpoint; a new classifier is random."""
    build = library.AutoModelForSequenceClassification
    try:
        if folder is None:
            network: nn.Module = build.from_config(config, trust_remote_code=False)
        else:
            local = {"local_files_only": True, "use_safetensors": True, "trust_remote_code": False}
            network = build.from_pretrained(str(folder), config=config, **local)
    except (ValueError, OSError, RuntimeError, LookupError, TypeError) as error:
        failed = "transformers cannot build {}" if folder is None else "The checkpoint {} cannot be read"
        raise ValueError(f"{failed.format(folder or text.strip())} as a classifier of sentences: {error}") from error
    return network
