"""Networks of any class of Hugging Face's transformers, from their configuration and with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isclass
from typing import Any

from torch import nn

from normless.extras import import_extra
from normless.models._text_classifier import TRANSFORMERS


def is_class(call: str) -> bool:
    """Whether the text after ``transformers:`` names a class, as `ViTModel(config={…})`, not a kind of model."""
    return call.strip()[:1].isupper() and call.rstrip().endswith(")")


def network_of_class(name: str, config: Mapping[str, Any]) -> nn.Module:
    """Create a network from the name of its class and its configuration.

    Raises:
        ValueError: transformers has no class of networks of this name.
        MissingExtraError: transformers is not installed.
    """
    library = import_extra("zoo", f"{TRANSFORMERS}:{name}", TRANSFORMERS)
    kind = getattr(library, name, None)
    if not (isclass(kind) and issubclass(kind, library.PreTrainedModel)):
        raise ValueError(f"transformers has no class of networks {name!r}.")
    create: Any = kind
    network: nn.Module = create(create.config_class.from_dict(dict(config)))
    return network
