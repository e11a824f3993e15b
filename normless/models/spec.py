"""Models named by text, as the command line and run configurations name them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from normless.extras import import_extra
from normless.models.layers import MODELS
from normless.models.text_classifier import SOURCE as TRANSFORMERS
from normless.models.text_classifier import is_path, text_classifier
from normless.registry import check_arguments
from normless.spec import format_call, parse_call

# One positional argument, several, or keyword arguments.
Inputs = Tensor | tuple[Any, ...] | dict[str, Any]
Shape = tuple[int, int, int]
SMALL_IMAGE: Shape = (3, 32, 32)


def build_model(spec: str, *, classes: int | None = None, image_shape: Shape | None = None) -> nn.Module:
    """Build the network that `spec` names, fitted to a data set where its shape is given.

    Args:
        spec: `normless:NAME`, `torchvision:NAME` or `timm:NAME`, each with optional `(key=value, …)`;
            `transformers:KIND(key=value, …)`, `transformers:FILE.json` or `transformers:FOLDER` (a classifier of
            sentences, see `text_classifier`); or `FILE.py:FUNCTION` or `MODULE:FUNCTION`, whose code is run and which
            may return inputs beside the network; they are left out here. Arguments in the text win over the data
            set's.
        classes: number of logits, or None for the model's own default.
        image_shape: (channels, height, width) of the data, or None.

    Raises:
        ValueError: the text is of no such form, names an unknown model or an argument it does not take.
        MissingExtraError: torchvision, timm or transformers is needed and not installed.
    """
    return _build(spec, classes, image_shape)[0]


def build_with_inputs(
    spec: str, *, classes: int | None = None, image_shape: Shape | None = None
) -> tuple[nn.Module, Inputs]:
    """Build the network that `spec` names, and example inputs for it.

    The inputs are those of the network's own `example_inputs()` (a transformer), or those that a file's function
    returns beside it (a tensor, a tuple of positional or a dictionary of keyword arguments); else two random images
    or vectors, always the same.

    Arguments are those of `build_model`. If `image_shape` is None it is what timm states for its model, 3 × 224 × 224
    for torchvision (299 for its inception_v3) and the ImageNet networks of normless, 3 × 32 × 32 for the others.

    Raises:
        ValueError: an image shape is given for a network that takes none; else as `build_model` does.
    """
    source, call = _split(spec)
    fitted = SMALL_IMAGE if image_shape is None and source == "normless" else image_shape
    model, inputs = _build(spec, classes, fitted)
    made: Any = getattr(model, "example_inputs", None)
    if callable(made):
        if image_shape is not None:
            raise ValueError(f"{spec.strip()} takes no images, and so none of shape {image_shape}.")
        return model, made()
    if inputs is None or image_shape is not None:
        shape = image_shape or _shape_made_for(source, model, *parse_call(call))
        inputs = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    return model, inputs


def fitted_spec(spec: str, *, classes: int | None = None, image_shape: Shape | None = None) -> str:
    """The text that alone names the network which `build_with_inputs` builds; errors are those of `build_model`."""
    source, call = _split(spec)
    if source == TRANSFORMERS and (classes is None or is_path(call)):
        return spec.strip()
    shape = SMALL_IMAGE if image_shape is None and source == "normless" else image_shape
    name, given = parse_call(call)
    fitted = _fitted(source, name, classes, shape)
    if fitted.keys() <= given.keys():
        return spec.strip()
    return f"{source}:{format_call(name, given | fitted | given)}"


def _shape_made_for(source: str, model: nn.Module, name: str, arguments: dict[str, Any]) -> tuple[int, ...]:
    """The shape of one example of a network, from its text or its library."""
    if source == "normless" and "in_features" in arguments:
        return (arguments["in_features"],)
    channels: int = arguments.get("in_channels", 3)
    size: Any = 32
    if source == "timm":
        channels, *size = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
        channels, size = arguments.get("in_chans", channels), arguments.get("img_size", size)
    elif source == "torchvision":
        channels, size = 3, arguments.get("image_size", 299 if name == "inception_v3" else 224)
    elif source == "normless" and name in ("resnet", "resnet_v2"):
        size = 224
    return (channels, size, size) if isinstance(size, int) else (channels, *size)


def _split(spec: str) -> tuple[str, str]:
    """The source of a model and its call."""
    file, found, call = spec.strip().partition(".py:")
    if found:
        return f"{file}.py", call
    source, separator, call = spec.strip().partition(":")
    if not separator:
        raise ValueError(
            "Expected normless:NAME, torchvision:NAME, timm:NAME, transformers:KIND, FILE.py:FUNCTION or the folder "
            f"of a saved network, got {spec!r}; the networks of normless are {', '.join(MODELS)}."
        )
    return source, call


def _build(spec: str, classes: int | None, image_shape: Shape | None) -> tuple[nn.Module, Inputs | None]:
    """The network, and the inputs that come with it, if any do."""
    source, call = _split(spec)
    if source == TRANSFORMERS:
        return text_classifier(call, classes=classes), None
    name, arguments = parse_call(call)
    fitted = _fitted(source, name, classes, image_shape) | arguments
    if source == "normless":
        build = _reference(name)
        check_arguments(f"model normless:{name}", fitted, build)
        return build(**fitted), None
    if source in _ZOOS:
        return _of_zoo(source, name, fitted), None
    return _checked(spec, MODELS.find(f"{source}:{name}")(**arguments))


def _fitted(source: str, name: str, classes: int | None, shape: Shape | None) -> dict[str, Any]:
    """The arguments that fit a network to a data set, as far as it takes any."""
    if source == "normless":
        fitted: dict[str, Any] = {} if classes is None else {"classes": classes}
        if shape is not None:
            fitted |= {"in_channels": shape[0], "in_features": prod(shape)}
        known = inspect.signature(_reference(name)).parameters
        return {key: value for key, value in fitted.items() if key in known}
    if source == TRANSFORMERS and classes is not None:
        return {"num_labels": classes}
    if source not in _ZOOS:
        return {}
    fitted = {} if classes is None else {"num_classes": classes}
    return fitted | {"in_chans": shape[0]} if source == "timm" and shape is not None else fitted


def _reference(name: str) -> Callable[..., nn.Module]:
    if name not in MODELS:
        raise ValueError(f"normless has no network {name!r}; it has {', '.join(MODELS)}.")
    return MODELS[name]


# Of each library of models: its module, its constructor, and how to list them.
_ZOOS = {
    "torchvision": ("torchvision.models", "get_model", "torchvision.models.list_models() names them all"),
    "timm": ("timm", "create_model", "timm.list_models('*NAME*') finds one by a part of its name"),
}


def _of_zoo(source: str, name: str, arguments: dict[str, Any]) -> nn.Module:
    module, create, listing = _ZOOS[source]
    library = import_extra("zoo", f"{source}:{name}", module)
    if not (library.is_model(name) if source == "timm" else name in library.list_models()):
        raise ValueError(f"{source} has no model {name!r}; {listing}.")
    try:
        model: nn.Module = getattr(library, create)(name, **arguments)
    except TypeError as error:
        if not arguments:
            raise
        raise ValueError(f"{source}'s {name} cannot be built with {', '.join(arguments)}: {error}.") from error
    return model


def _checked(spec: str, returned: Any) -> tuple[nn.Module, Inputs | None]:
    """What the function of a file or module returned: a network, or one and its inputs."""
    model, inputs = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(model, nn.Module):
        returns = f"{spec} returned a {type(model).__name__}"
        raise ValueError(f"{returns}, expected a torch.nn.Module, or one and its inputs.")
    if not isinstance(inputs, Tensor | tuple | dict | None):
        returns = f"{spec} returned inputs that are a {type(inputs).__name__}"
        raise ValueError(f"{returns}, expected a tensor, a tuple of positional or a dictionary of keyword arguments.")
    return model, inputs
