"""Schemes as the papers print them, on weights initialized as their texts say.

The conversions' `keep_scale`, which would rescale those weights, is turned off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from torch import nn

import normless
from normless_lab.sweeps import without_kept_scale

Model = TypeVar("Model", bound=nn.Module)


def convert(model: Model, scheme: str, *inputs: Any) -> Model:
    """Convert a network by a scheme as printed."""
    return normless.convert(model, without_kept_scale(scheme), *inputs)


def axes_as_printed(axes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the axes of a sweep with their schemes as printed."""
    return {
        axis: {
            label: {
                name: without_kept_scale(value) if name == "scheme" else value for name, value in settings.items()
            }
            for label, settings in labels.items()
        }
        for axis, labels in axes.items()
    }
