"""A CUDA graph on the CPU: a capture records operators and leaves memory as it was, a replay repeats them there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph:
    """Stands for `torch.cuda.CUDAGraph`.

    Attributes:
        operators: each with its arguments and its results, which keep their place in memory.
        replays: the number of replays.
    """

    def __init__(self) -> None:
        self.operators: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def replay(self) -> None:
        """Repeat the operators on the same memory."""
        self.replays += 1
        with torch._C._AutoDispatchBelowAutograd():
            for operator, args, kwargs, results in self.operators:
                repeated = operator(*args, **kwargs)
                for place, value in zip(tree_leaves(results), tree_leaves(repeated), strict=True):
                    if isinstance(place, Tensor) and value.data_ptr() != place.data_ptr():
                        place.copy_(value)


class _Recording(TorchDispatchMode):
    """Records operators, and keeps what their memory held before."""

    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()
        self.graph = graph
        self.before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("a captured step reads a value on the host")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                for tensor in tree_leaves(value):
                    self.before.setdefault(tensor.data_ptr(), (tensor, tensor.clone()))
        results = func(*args, **(kwargs or {}))
        self.graph.operators.append((func, args, kwargs or {}, results))
        return results


@contextmanager
def _recorded(graph: RecordedGraph, **_: Any) -> Iterator[None]:
    """Stand for `torch.cuda.graph`."""
    recording = _Recording(graph)
    with recording:
        yield
    for tensor, values in recording.before.values():
        tensor.detach().copy_(values)


def record_graphs(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Let torch make recorded graphs instead of CUDA's; return the list that will hold them."""
    graphs: list[RecordedGraph] = []

    def made() -> RecordedGraph:
        graphs.append(RecordedGraph())
        return graphs[-1]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", made)
    monkeypatch.setattr(torch.cuda, "graph", _recorded)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return graphs
