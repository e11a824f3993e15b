"""A function of one tensor as a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Function(nn.Module):
    """Apply a function or method from forward code to a tensor, with the same further arguments.

    The function never works in place.
    """

    def __init__(self, function: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        plain = function.__name__.rstrip("_")
        if function.__name__.endswith("_") and hasattr(torch, plain):
            function = getattr(torch, plain)
        self.function = function
        self.args = args
        self.kwargs = {name: value for name, value in (kwargs or {}).items() if name != "inplace"}

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.function(x, *self.args, **self.kwargs)
        return y

    def extra_repr(self) -> str:
        return str(self.function.__name__)
