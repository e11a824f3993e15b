"""Which normalizations a forward pass runs: operators on activations, seen where torch dispatches them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NORMS = frozenset(
    {
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "_batch_norm_with_update",
        "_batch_norm_no_update",
        "batch_norm",
        "cudnn_batch_norm",
        "instance_norm",
        "native_layer_norm",
        "native_group_norm",
        "_fused_rms_norm",
        "rms_norm",
    }
)
"""The operators of normalization layers."""

STATISTICS = frozenset({"rsqrt", "var", "var_mean", "std", "std_mean", "linalg_vector_norm", "norm"})
"""Operators that a norm written by hand is made of, and other things as well: `F.normalize` of queries and keys."""


class OperatorCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts norms of activations; those of weights, as weight standardization makes them, are not counted.

    A tensor is an activation if it shares memory with an input, or is the result of an operation on one.
    """

    def __init__(self, inputs: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.norms: Counter[str] = Counter()
        self.statistics: Counter[str] = Counter()
        # Kept, so that no other storage gets the address of one that was freed.
        self._kept: list[Tensor] = []
        self._memory: set[int] = set()
        self._note(inputs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        output = func(*args, **(kwargs or {}))
        if any(_memory(tensor) in self._memory for tensor in given):
            name = func.overloadpacket.__name__
            floating = bool(given) and given[0].is_floating_point()
            if name in NORMS and _memory(given[0]) in self._memory:
                self.norms[name] += 1
            elif name in STATISTICS and floating:
                self.statistics[name] += 1
            written = given[:1] if name.endswith("_") else []
            self._note((output, written))
        return output

    def _note(self, values: Any) -> None:
        for leaf in tree_leaves(values):
            if isinstance(leaf, Tensor):
                self._kept.append(leaf)
                self._memory.add(_memory(leaf))


def _memory(tensor: Tensor) -> int:
    # A sparse tensor has the memory of its indices and values, and none itself.
    if tensor.layout != torch.strided:
        return id(tensor)
    return int(tensor.untyped_storage()._cdata)


def count_operators(model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> OperatorCount:
    """The norms of one forward pass in the network's mode; its buffers are kept as they are."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    counted = OperatorCount((inputs, kwargs))
    try:
        with torch.no_grad(), counted:
            model(*inputs, **kwargs)
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape:
                    buffer.copy_(buffers[name])
    return counted
