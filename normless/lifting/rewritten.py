"""A module whose forward is given as code: of a subclass of its class, which copies and pickles like any other."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import Graph
from torch.fx.graph_module import _exec_with_source, _format_import_block
from torch.package.importer import sys_importer

_IMPORTS = """\
import torch
from normless.lifting.argument_guards import require as normless_require
from normless.lifting.argument_guards import require_tensors as normless_require_tensors
"""


def rewrite(module: nn.Module, head: str, graph: Graph) -> None:
    """Give a module the forward of a graph; `head` is the code before the graph's own, from `def forward` on."""
    code = graph.python_code("self")
    body = code.src.partition("def forward(")[2].partition("\n")[2]
    source = f"{_IMPORTS}{_format_import_block(code.globals, sys_importer)}\n{head}{body}"
    module.__class__ = rewritten_class(original_class(module), source)


def original_class(module: nn.Module) -> type[nn.Module]:
    """The class a module had before its forward was rewritten; its own where it was not."""
    return getattr(type(module), "normless_original", type(module))


_CLASSES: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}


def rewritten_class(original: type[nn.Module], source: str) -> type[nn.Module]:
    """The subclass of a class whose forward is `source`; one and the same for the same text."""
    if (original, source) not in _CLASSES:
        members: dict[str, Any] = {}
        _exec_with_source(source, members)
        _CLASSES[original, source] = type(
            original.__name__,
            (original,),
            {
                "forward": members["forward"],
                "normless_original": original,
                "normless_source": source,
                "__module__": original.__module__,
                "__qualname__": original.__qualname__,
                "__reduce_ex__": _reduce,
            },
        )
    return _CLASSES[original, source]


def _reduce(self: nn.Module, protocol: object) -> tuple[Any, ...]:
    kind: Any = type(self)
    return _restored, (kind.normless_original, kind.normless_source), self.__dict__.copy()


def _restored(original: type[nn.Module], source: str) -> nn.Module:
    kind = rewritten_class(original, source)
    return kind.__new__(kind)
