"""Modules that overwrite their input if nothing else reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as global_hooks


class InPlace:
    """A module that may overwrite an input without gradients, if no hook sees the input."""

    _hooks_around: tuple[Mapping[int, Any], ...] | None = None

    @property
    def inplace(self) -> bool:
        """Whether the module overwrites an input now."""
        return (
            self._hooks_around is not None
            and not torch.is_grad_enabled()
            and not any(self._hooks_around)
            and not global_hooks._global_forward_hooks
            and not global_hooks._global_forward_pre_hooks
        )

    def overwrite_in(self, caller: nn.Module) -> None:
        """Let the module overwrite a tensor that only the forward code of `caller` and its modules see."""
        hooks = [(module._forward_hooks, module._forward_pre_hooks) for module in caller.modules()]
        self._hooks_around = tuple(kind for pair in hooks for kind in pair)


class InPlaceReLU(InPlace, nn.ReLU):  # type: ignore[override]
    """`nn.ReLU` that may work in place."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
