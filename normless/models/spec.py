"""Models named by text, as the command line and run configurations name them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from math import prod
from pathlib import Path
from typing import Any

from torch import nn

from normless.models import dense, resnet_cifar, wide_resnet
from normless.spec import parse_call

REFERENCE: dict[str, Callable[..., nn.Module]] = {
    "wide_resnet": wide_resnet,
    "resnet_cifar": resnet_cifar,
    "dense": dense,
}


def build_model(
    spec: str, *, classes: int | None = None, image_shape: tuple[int, int, int] | None = None
) -> nn.Module:
    """Build the network that `spec` names, fitted to a data set where its shape is given.

    Args:
        spec: `normless:NAME`, `torchvision:NAME` or `timm:NAME`, each with optional `(key=value, …)`, or
            `FILE.py:FUNCTION`, whose code is run. Arguments in the text win over the data set's.
        classes: number of logits, or None for the model's own default.
        image_shape: (channels, height, width) of the data, or None.

    Raises:
        ValueError: the text is of no such form, names an unknown model or an argument it does not take.
        ModuleNotFoundError: torchvision or timm is needed and not installed.
    """
    source, separator, call = spec.strip().partition(":")
    if not separator:
        raise ValueError(
            f"Expected normless:NAME, torchvision:NAME, timm:NAME or FILE.py:FUNCTION, got {spec!r}; "
            f"the networks of normless are {', '.join(REFERENCE)}."
        )
    name, arguments = parse_call(call)
    if source == "normless":
        return _reference(name, arguments, classes, image_shape)
    if source == "torchvision":
        return _torchvision(name, arguments, classes)
    if source == "timm":
        return _timm(name, arguments, classes, image_shape)
    if source.endswith(".py"):
        return _from_file(Path(source), name, arguments)
    raise ValueError(f"Unknown source of models {source!r} in {spec!r}: normless, torchvision, timm or a file.")


def _reference(
    name: str, arguments: dict[str, Any], classes: int | None, shape: tuple[int, int, int] | None
) -> nn.Module:
    if name not in REFERENCE:
        raise ValueError(f"normless has no network {name!r}; it has {', '.join(REFERENCE)}.")
    build = REFERENCE[name]
    known = inspect.signature(build).parameters
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise ValueError(f"{name} takes {', '.join(known)}; it does not take {', '.join(unknown)}.")
    fitted: dict[str, Any] = {} if classes is None else {"classes": classes}
    if shape is not None:
        fitted |= {"in_channels": shape[0], "in_features": prod(shape)}
    return build(**{key: value for key, value in fitted.items() if key in known} | arguments)


def _torchvision(name: str, arguments: dict[str, Any], classes: int | None) -> nn.Module:
    models = _zoo("torchvision.models")
    if name not in models.list_models():
        raise ValueError(f"torchvision has no model {name!r}; torchvision.models.list_models() names them all.")
    fitted = {} if classes is None else {"num_classes": classes}
    model: nn.Module = models.get_model(name, **fitted | arguments)
    return model


def _timm(name: str, arguments: dict[str, Any], classes: int | None, shape: tuple[int, int, int] | None) -> nn.Module:
    timm = _zoo("timm")
    if not timm.is_model(name):
        raise ValueError(f"timm has no model {name!r}; timm.list_models('*{name[:6]}*') may name the one meant.")
    fitted = {} if classes is None else {"num_classes": classes}
    if shape is not None:
        fitted["in_chans"] = shape[0]
    model: nn.Module = timm.create_model(name, **fitted | arguments)
    return model


def _zoo(module: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise ModuleNotFoundError(
            f"{package} is not installed; install it with: pip install 'normless[zoo]'", name=package
        ) from error


def _from_file(path: Path, name: str, arguments: dict[str, Any]) -> nn.Module:
    if not path.is_file():
        raise ValueError(f"There is no file {path} to take the model {name!r} from.")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        raise ValueError(f"{path} has no function {name!r}.")
    model = getattr(module, name)(**arguments)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{path}:{name} returned a {type(model).__name__}, expected a torch.nn.Module.")
    return model
