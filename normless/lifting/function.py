"""A function of one tensor as a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Function(nn.Module):
    """Applies a function that forward code applied, with the same further arguments; never in place.

    Args:
        function: the function, or the name of a tensor's method.
        args, kwargs: its arguments behind the tensor.
    """

    def __init__(self, function: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        if isinstance(function, str):
            function = getattr(Tensor, function.rstrip("_") if not function.startswith("__") else function)
        elif function.__name__.endswith("_") and hasattr(torch, function.__name__.rstrip("_")):
            function = getattr(torch, function.__name__.rstrip("_"))
        self.function = function
        self.args = args
        self.kwargs = {name: value for name, value in (kwargs or {}).items() if name != "inplace"}

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        y: Tensor = self.function(x, *self.args, **self.kwargs)
        return y

    def extra_repr(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", self.function))
