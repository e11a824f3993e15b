"""Build models from text, as on the command line and in run configurations."""

from __future__ import annotations

import inspect
from collections.abc import Container
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.copying import copied
from normless.errors import NormlessError
from normless.models import _zoos as zoos
from normless.models._downloads import refuse_downloads
from normless.models._layers import MODELS, Network
from normless.models._network_class import is_class, network_of_class
from normless.models._text_classifier import TRANSFORMERS, is_path, text_classifier
from normless.registry import check_arguments, did_you_mean
from normless.spec import format_call, parse_call, split_source

# One positional argument, several, or keyword arguments.
Inputs = Tensor | tuple[Any, ...] | dict[str, Any]
Shape = tuple[int, int, int]
SMALL_IMAGE: Shape = (3, 32, 32)
MOST = 1_000_000  # blocks, channels, classes
# The libraries whose networks a text can name, each with the arguments that fit a network to a data set.
ZOOS = {"torchvision": ("num_classes",), "timm": ("num_classes", "in_chans"), TRANSFORMERS: ("num_labels",)}


def build_model(spec: str, *, classes: int | None = None, image_shape: Shape | None = None) -> nn.Module:
    """Build the network that `spec` names, fitted to a data set if its shape is given.

    Args:
        spec: `normless:NAME`, `torchvision:NAME` or `timm:NAME`, each with optional `(key=value, …)`;
            `transformers:KIND(key=value, …)`, `transformers:FILE.json` or `transformers:FOLDER` (a classifier of
            sentences, see `normless.models.text_classifier`); `transformers:CLASS(config={…})`, a network of this
            class with random weights; or `FILE.py:FUNCTION` or `MODULE:FUNCTION`, a function
            that is called and may return inputs with the network, which are ignored here, or FILE.py:NETWORK, a
            network, which is copied. Arguments in the text take precedence over those of the data set.
        classes: number of logits, or None for the model's own default.
        image_shape: (channels, height, width) of the data, or None.

    Raises:
        ValueError: the text does not have this form, or names an unknown model or argument.
        MissingExtraError: torchvision, timm or transformers is not installed.
    """
    return _build(spec, classes, image_shape)[0]


def build_with_inputs(
    spec: str, *, classes: int | None = None, image_shape: Shape | None = None
) -> tuple[nn.Module, Inputs]:
    """Build the network that `spec` names, and example inputs for it.

    The inputs come from the `example_inputs()` of a network that does not take images (a transformer) or from the
    function in a file (a tensor, a tuple of positional or a dictionary of keyword arguments); otherwise they are two
    fixed random images or vectors.

    Arguments are those of `build_model`. If `image_shape` is None, it is that of timm's configuration of the model,
    3 × 224 × 224 for torchvision (299 for inception_v3) and for the ImageNet networks of normless, and 3 × 32 × 32
    for other networks.

    Raises:
        ValueError: an image shape is given for a network that does not take images; or as in `build_model`.
    """
    source, call = _split(spec)
    model, inputs = _build(spec, classes, _fitted_shape(source, image_shape))
    made: Any = getattr(model, "example_inputs", None)
    if callable(made) and not isinstance(model, Network):
        if image_shape is not None:
            raise ValueError(f"{spec.strip()} does not take images, got the image shape {image_shape}.")
        return model, made()
    if inputs is None or image_shape is not None:
        shape = image_shape or _shape_made_for(source, model, *parse_call(call))
        inputs = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    return model, inputs


def build_with_own_inputs(
    spec: str, *, classes: int | None = None, image_shape: Shape | None = None
) -> tuple[nn.Module, Inputs | None]:
    """Build the network that `spec` names, with the inputs that a function in a file returns, or None."""
    return _build(spec, classes, _fitted_shape(_split(spec)[0], image_shape))


def fitted_spec(spec: str, *, classes: int | None = None, image_shape: Shape | None = None) -> str:
    """Return a text that fully names the network of `build_with_inputs`; errors are those of `build_model`."""
    source, call = _split(spec)
    if source == TRANSFORMERS and is_path(call):
        return spec.strip()
    name, given = parse_call(call)
    fitted = _fitted(source, name, classes, _fitted_shape(source, image_shape))
    if fitted.keys() <= given.keys():
        return spec.strip()
    return f"{source}:{format_call(name, given | fitted | given)}"


def _fitted_shape(source: str, image_shape: Shape | None) -> Shape | None:
    """Return the image shape of a network if it is known before the network is built, else None."""
    return SMALL_IMAGE if image_shape is None and source == "normless" else image_shape


def _shape_made_for(source: str, model: nn.Module, name: str, arguments: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape of an example of a network, from its text or its library."""
    if source in ZOOS:
        return zoos.image_shape(source, model, name, arguments)
    if source == "normless" and "in_features" in arguments:
        return (arguments["in_features"],)
    size = 224 if source == "normless" and name in ("resnet", "resnet_v2") else 32
    return (arguments.get("in_channels", 3), size, size)


def _split(spec: str) -> tuple[str, str]:
    """Split the text of a model into its source and its call."""
    source, call = split_source(spec)
    if not source:
        raise ValueError(
            "Expected normless:NAME, torchvision:NAME, timm:NAME, transformers:KIND, FILE.py:FUNCTION or the folder "
            f"of a saved network, got {spec!r}; the networks of normless are {', '.join(MODELS)}."
        )
    return source.removesuffix(":"), call


def _build(spec: str, classes: int | None, image_shape: Shape | None) -> tuple[nn.Module, Inputs | None]:
    """Build a network, and return it with the inputs that a function in a file returned, or None."""
    source, call = _split(spec)
    if classes is not None and classes < 1:
        raise ValueError(f"Expected 1 or more classes of {spec.strip()}, got {classes}.")
    name, arguments = (call, {}) if source == TRANSFORMERS and is_path(call) else parse_call(call)
    fitted = _fitted(source, name, classes, image_shape) | arguments
    if source not in (*ZOOS, "normless"):
        found = MODELS.find(f"{source}:{name}")
        if not isinstance(found, nn.Module):
            return _checked(spec, MODELS.make(spec))
        if arguments:
            raise ValueError(f"{source}:{name} is a network, not a function that takes {', '.join(arguments)}.")
        return copied(found), None
    large = [f"{key}={value}" for key, value in fitted.items() if isinstance(value, int) and value > MOST]
    if large:
        raise ValueError(f"Expected whole numbers of at most {MOST:,} in {spec.strip()}, got {', '.join(large)}.")
    try:
        if source == TRANSFORMERS:
            refuse_downloads(spec.strip(), name, arguments)
        if source == TRANSFORMERS and is_class(call):
            check_arguments(f"class {name}", arguments, network_of_class, given=("name",))
            return network_of_class(name, **arguments), None
        if source == TRANSFORMERS:
            return text_classifier(call, classes=classes), None
        if source in ZOOS:
            return zoos.image_network(source, name, fitted), None
        check_arguments(f"model normless:{name}", fitted, MODELS[name])
        return MODELS[name](**fitted), None
    except (NormlessError, ValueError, ImportError):
        raise
    except Exception as error:  # Other libraries raise errors of many classes.
        raise ValueError(f"{spec.strip()} cannot be built, {type(error).__name__}: {error}") from error


def _fitted(source: str, name: str, classes: int | None, shape: Shape | None) -> dict[str, Any]:
    """Return the arguments that fit a network to a data set, without those that it does not take."""
    known: Container[str] = ZOOS.get(source, ())
    if source == "normless":
        if name not in MODELS:
            raise ValueError(
                f"normless has no network {name!r}.{did_you_mean(name, MODELS)} It has {', '.join(MODELS)}."
            )
        known = inspect.signature(MODELS[name]).parameters
    fitted: dict[str, Any] = (
        {} if classes is None else dict.fromkeys(("classes", "num_classes", "num_labels"), classes)
    )
    if shape is not None:
        fitted |= {"in_channels": shape[0], "in_chans": shape[0], "in_features": prod(shape)}
    return {key: value for key, value in fitted.items() if key in known}


def _checked(spec: str, returned: Any) -> tuple[nn.Module, Inputs | None]:
    """Check the return value of a function in a file or module: a network, or a network and its inputs."""
    model, inputs = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(model, nn.Module):
        returns = f"{spec} returned an object of type {type(model).__name__}"
        raise ValueError(f"{returns}, expected a torch.nn.Module, or a torch.nn.Module and its inputs.")
    if not isinstance(inputs, Tensor | tuple | dict | None):
        returns = f"{spec} returned inputs of type {type(inputs).__name__}"
        raise ValueError(f"{returns}, expected a tensor, a tuple of positional or a dictionary of keyword arguments.")
    return model, inputs
