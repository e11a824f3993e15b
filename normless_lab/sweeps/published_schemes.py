"""Schemes as the papers print them: on weights with the initialization of their texts, without rescaling."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

import normless
from normless.schemes import SCHEMES
from normless.spec import parse_call, split_terms

Model = TypeVar("Model", bound=nn.Module)


def as_printed(scheme: str) -> str:
    """Return the text of a scheme without the edit that gives weights the scale of the norms, if it has it.

    The papers specify how weights are drawn; `keep_scale` is ours.
    """
    first, *further = split_terms(scheme)
    name, arguments = parse_call(first)
    if "keep_scale" in inspect.signature(SCHEMES.find(name)).parameters and "keep_scale" not in arguments:
        first = f"{first[:-1]}, keep_scale=False)" if arguments else f"{name}(keep_scale=False)"
    return " + ".join([first, *further])


def convert(model: Model, scheme: str, *inputs: Any) -> Model:
    """Call `normless.convert` with a scheme as printed."""
    return normless.convert(model, as_printed(scheme), *inputs)


def axes_as_printed(axes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the axes of a sweep with their schemes as printed."""
    return {
        axis: {
            label: {name: as_printed(value) if name == "scheme" else value for name, value in settings.items()}
            for label, settings in labels.items()
        }
        for axis, labels in axes.items()
    }
