"""The attributes of modules that are not tensors, as JSON: ε, momentum, slopes, dropout and all others."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normless._internal.arguments import CARRIED
from normless.conversion import CONVERSION, MARK
from normless.errors import RecipeError

# What every module has, and what a recipe holds elsewhere.
_OF_EVERY_MODULE = {*vars(nn.Module()), MARK, CONVERSION, CARRIED}
# Longer containers are data.
_LONGEST = 1000
_FUNCTIONS = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class _NotStoredError(Exception):
    """A value that a recipe cannot hold; networks are not compared by it."""


def kinds_of_modules(net: nn.Module) -> list[dict[str, Any]]:
    """Group the modules of a network by class and settings; see `State.modules`."""
    kinds: list[dict[str, Any]] = []
    for path, module in _described_modules(net).items():
        known = next((kind for kind in kinds if all(kind[key] == module[key] for key in module)), None)
        if known is None:
            kinds.append(module | {"paths": [path]})
        else:
            known["paths"].append(path)
    return kinds


def set_settings(net: nn.Module, kinds: list[dict[str, Any]]) -> None:
    """Give the modules of a network the settings of `kinds_of_modules`.

    Raises:
        RecipeError: a module is missing or of another class, or differs in what a recipe names but cannot hold.
    """
    modules, now = dict(net.named_modules()), _described_modules(net)
    wanted = {path: kind for kind in kinds for path in kind["paths"]}
    for path, own in now.items() if wanted else ():
        if path not in wanted:
            raise RecipeError(f"{path} is a {own['class']} that the saved network does not have.")
    for path, kind in wanted.items():
        if path not in now or now[path]["class"] != kind["class"]:
            here = f"a {now[path]['class']} here" if path in now else "not here"
            raise RecipeError(f"{path or 'The network'} is a {kind['class']} in the saved network and {here}.")
        settings = modules[path].__dict__
        for name, value in kind["settings"].items():
            if name in now[path]["settings"] and now[path]["settings"][name] == value:
                continue
            _refuse_part_of_class(modules[path], name)
            try:
                settings[name] = _restored(value, settings.get(name))
            except (_NotStoredError, TypeError, ValueError):
                what = f"{name} of {path or 'the network'}, a {kind['class']}, is {_in_words(value)}"
                here = _in_words(now[path]["settings"].get(name))
                raise RecipeError(
                    f"{what} in the saved network and {here} here, and a recipe cannot hold it."
                ) from None


def _refuse_part_of_class(module: nn.Module, name: str) -> None:
    """Raise a RecipeError for the name of what no setting replaces: torch's tables of a module, and methods."""
    if name in _OF_EVERY_MODULE or (name not in vars(module) and callable(getattr(type(module), name, None))):
        raise RecipeError(
            f"The recipe has a setting {name} of a {type(module).__name__}, which is part of its class."
        )


def _described_modules(net: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the class, settings and absent tensors of every module, by its first path."""
    return {
        path: {
            "class": type(module).__name__,
            "settings": dict(_settings(vars(module))),
            "absent": sorted(
                name
                for table in (module._parameters, module._buffers)
                for name, tensor in table.items()
                if tensor is None
            ),
        }
        for path, module in net.named_modules()
    }


def _settings(attributes: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in attributes.items():
        if name not in _OF_EVERY_MODULE:
            try:
                yield name, _described(value)
            except _NotStoredError:
                continue


def _described(value: Any) -> Any:
    """Describe a value as JSON; a value that can be named but not restored is `{"is": …}`."""
    if isinstance(value, Enum):
        return {"is": str(value)}
    if isinstance(value, float):
        return float(value) if isfinite(value) else {"float": str(value)}
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        if Path(value).is_absolute():
            raise _NotStoredError
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        return _described_container(value)
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, _FUNCTIONS):
        return {"is": getattr(value, "__qualname__", str(value))}
    if isinstance(value, nn.Module):
        return {"is": type(value).__name__}
    # Tensors, devices, generators, and objects: a configuration is that of the network that is given or built.
    raise _NotStoredError


def _described_container(value: Any) -> Any:
    if len(value) > _LONGEST:
        raise _NotStoredError
    if isinstance(value, dict):
        return {"items": [[_described(key), _described(item)] for key, item in value.items()]}
    items = [_described(item) for item in value]
    return {"set": sorted(items, key=str)} if isinstance(value, (set, frozenset)) else items


def _restored(value: Any, current: Any) -> Any:
    """Return the value that `_described` described, to replace the current one."""
    if isinstance(value, list):
        is_like = isinstance(current, (list, tuple)) and len(current) == len(value)
        before = list(current) if is_like else [None] * len(value)
        items = [_restored(item, old) for item, old in zip(value, before, strict=True)]
        return items if isinstance(current, list) else tuple(items)
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float(value["float"])
    if "dtype" in value:
        return _dtype(value["dtype"])
    if "set" in value:
        return set(_restored(value["set"], None))
    if "items" in value:
        known = current if isinstance(current, dict) else {}
        pairs = [(_restored(key, None), item) for key, item in value["items"]]
        return {key: _restored(item, known.get(key)) for key, item in pairs}
    if value == _named(current):
        return current
    raise _NotStoredError


def _dtype(name: Any) -> torch.dtype:
    """Return the dtype of a name; a recipe may come from anywhere, and torch has other names."""
    kind = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(kind, torch.dtype):
        raise _NotStoredError
    return kind


def _named(value: Any) -> Any:
    try:
        return _described(value)
    except _NotStoredError:
        return None


def _in_words(value: Any) -> str:
    return str(value.get("is") or value) if isinstance(value, dict) else repr(value)
