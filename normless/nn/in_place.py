"""Modules that overwrite the tensor that they read where nothing else reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.nn import functional as F
from torch.nn.modules import module as global_hooks

from normless.nn.kept_once import nothing_watches

_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")


class InPlace:
    """A module that may overwrite a tensor that it reads, in training or else without gradients.

    It does so while what was found out about its network holds: no hook sees the tensor, and the layer that computes
    it is still where it was. In training, compilers, exports, `torch.func` and modes see operators that keep it.
    """

    _hooks_around: tuple[Mapping[int, Any], ...] | None = None
    _source: tuple[Mapping[str, Any], str, nn.Module] | None = None
    _in_training = False

    @property
    def inplace(self) -> bool:
        """Whether it does so now; set to False, it never does again."""
        if self._hooks_around is None or torch.is_grad_enabled() is not self._in_training:
            return False
        is_training: bool = self.training  # type: ignore[attr-defined]
        if self._in_training and not (
            is_training and nothing_watches() and torch._C._len_torch_function_stack() == 0
        ):
            return False
        kinds = (*_FORWARD, *_BACKWARD) if self._in_training else _FORWARD
        return not any(self._hooks_around) and not any(getattr(global_hooks, f"_global{kind}") for kind in kinds)

    @inplace.setter
    def inplace(self, allowed: bool) -> None:
        if allowed:
            raise ValueError("Whether a module may work in place is proven for its network, by train_in_place.")
        self._hooks_around = None

    def may_overwrite(self, x: Tensor) -> bool:
        """Whether it may overwrite this tensor now."""
        if not self.inplace:
            return False
        if self._source is not None:
            siblings, name, source = self._source
            if siblings.get(name) is not source:
                return False
        # What a function written in Python returns, it may have kept for its backward pass.
        is_kept = isinstance(x.grad_fn, BackwardCFunction)
        return not self._in_training or (type(x) is Tensor and x._base is None and not is_kept)

    def overwrite_in(self, caller: nn.Module, source: nn.Module, in_training: bool) -> None:
        """Let it overwrite what `source` returns, which only forward code of `caller` and the modules in it see."""
        kinds = (*_FORWARD, *_BACKWARD) if in_training else _FORWARD
        self._hooks_around = tuple(getattr(module, kind) for module in caller.modules() for kind in kinds)
        self._source, self._in_training = next(_places(caller, source), None), in_training


def _places(caller: nn.Module, module: nn.Module) -> Iterator[tuple[Mapping[str, Any], str, nn.Module]]:
    """Where a module is among the children of another and of those in it: the table, its name there, and itself."""
    for parent in caller.modules():
        for name, child in parent._modules.items():
            if child is module:
                yield parent._modules, name, module


class InPlaceReLU(InPlace, nn.ReLU):
    """`nn.ReLU` that may work in place."""

    def __init__(self) -> None:
        nn.Module.__init__(self)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x, inplace=self.may_overwrite(x))
