"""Small networks whose forward pass is a function that a test gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


class Written(nn.Module):
    """Modules and parameters by name, and what the forward pass does with them."""

    def __init__(self, forward: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.written = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.written(self, *args, **kwargs)


def linear_layers(names: str, width: int) -> dict[str, nn.Linear]:
    """Linear layers of one width, by names separated by spaces."""
    return {name: nn.Linear(width, width) for name in names.split()}
