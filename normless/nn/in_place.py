"""Modules that overwrite the tensor that they read where nothing else reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as global_hooks


class InPlace:
    """A module that may overwrite a tensor that it reads: under `torch.no_grad`, and where no hook has seen it."""

    _hooks_around: tuple[Mapping[int, Any], ...] | None = None

    @property
    def inplace(self) -> bool:
        """Whether it does so now."""
        return (
            self._hooks_around is not None
            and not torch.is_grad_enabled()
            and not any(self._hooks_around)
            and not global_hooks._global_forward_hooks
            and not global_hooks._global_forward_pre_hooks
        )

    def overwrite_in(self, caller: nn.Module) -> None:
        """Let it overwrite a tensor that only forward code of `caller` and the modules in it see."""
        hooks = [(module._forward_hooks, module._forward_pre_hooks) for module in caller.modules()]
        self._hooks_around = tuple(kind for pair in hooks for kind in pair)


class InPlaceReLU(InPlace, nn.ReLU):  # type: ignore[override]
    """`nn.ReLU` that may work in place."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
