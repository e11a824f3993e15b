"""Image networks of torchvision and timm."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import nn

from normless.extras import import_extra
from normless.models._downloads import refuse_downloads
from normless.registry import did_you_mean

# Of each library: its module, its constructor, and how to list its networks.
_LIBRARIES = {
    "torchvision": ("torchvision.models", "get_model", "torchvision.models.list_models()"),
    "timm": ("timm", "create_model", "timm.list_models('*PART*')"),
}


def image_network(source: str, name: str, arguments: dict[str, Any]) -> nn.Module:
    """Build a network of `torchvision` or `timm` with arguments of its constructor.

    Raises:
        ValueError: the library has no such network, or it does not take the arguments.
        MissingExtraError: the library is not installed.
        UntrustedCodeError: data name weights, see `refuse_downloads`.
    """
    module, create, listing = _LIBRARIES[source]
    refuse_downloads(f"{source}:{name}", name, arguments)
    library = import_extra("zoo", f"{source}:{name}", module)
    if not (library.is_model(name) if source == "timm" else name in library.list_models()):
        meant = did_you_mean(name, library.list_models())
        raise ValueError(f"{source} has no model {name!r}.{meant} {listing} lists them.")
    if source == "torchvision" and "weights_backbone" in signature(library.get_model_builder(name)).parameters:
        # These weights are downloaded by default.
        arguments = {"weights_backbone": None} | arguments
    try:
        model: nn.Module = getattr(library, create)(name, **arguments)
    except TypeError as error:
        if not arguments:
            raise
        raise ValueError(f"{source}'s {name} cannot be built with {', '.join(arguments)}: {error}.") from error
    return model


def image_shape(source: str, model: nn.Module, name: str, arguments: dict[str, Any]) -> tuple[int, ...]:
    """Return the (channels, height, width) for which a network of a library is made."""
    if source == "torchvision":
        channels, size = 3, arguments.get("image_size", 299 if name == "inception_v3" else 224)
    else:
        channels, *size = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
        channels, size = arguments.get("in_chans", channels), arguments.get("img_size", size)
    return (channels, size, size) if isinstance(size, int) else (channels, *size)
