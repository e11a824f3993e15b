"""A sequence of modules whose activations are computed a second time in the backward pass instead of kept for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Segments(nn.Sequential):
    """`nn.Sequential` that in a pass with gradients keeps only the inputs of every `length` modules.

    The backward pass runs them again, from the buffers and the random state of the first pass, so that gradients are
    the same to the last bit and running statistics move once.
    """

    length: int

    def forward(self, x: Any) -> Any:
        if not torch.is_grad_enabled():
            return _in_turn([*self], x)
        modules = list(self)
        for start in range(0, len(modules), self.length):
            segment = modules[start : start + self.length]
            contexts = partial(_contexts, segment)
            x = checkpoint(partial(_in_turn, segment), x, use_reentrant=False, context_fn=contexts)
        return x


def _in_turn(modules: list[nn.Module], value: Any) -> Any:
    for module in modules:
        value = module(value)
    return value


def _contexts(modules: list[nn.Module]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For the first pass nothing; for the second one copies of the buffers as they were before the first."""
    tables = [part._buffers for module in modules for part in module.modules() if part._buffers]
    before = [{name: None if one is None else one.clone() for name, one in table.items()} for table in tables]

    @contextmanager
    def as_before() -> Iterator[None]:
        now = [dict(table) for table in tables]
        for table, values in zip(tables, before, strict=True):
            table.update({name: None if one is None else one.clone() for name, one in values.items()})
        try:
            yield
        finally:
            for table, values in zip(tables, now, strict=True):
                table.update(values)

    return nullcontext(), as_before()
