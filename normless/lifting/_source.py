"""The source of functions: their syntax trees, if the file is as it was when it was imported."""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
from collections import defaultdict
from copy import deepcopy
from functools import cache, lru_cache, reduce
from importlib.machinery import SourceFileLoader
from operator import or_
from types import CodeType, ModuleType
from typing import Any

from normless.errors import LiftError

_parsed = cache(ast.parse)
# The flags of a code object that `from __future__ import …` sets.
_FUTURE = reduce(or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))


def definition_of(function: Any) -> ast.FunctionDef:
    """Return a copy of a function's syntax tree, which blocks of one class share, with positions as in its file.

    Raises:
        LiftError: there is no source, or it changed since the function was imported.
    """
    return deepcopy(_shared_definition(function.__code__, function.__qualname__))


@cache
def _shared_definition(code: CodeType, name: str) -> ast.FunctionDef:
    module = inspect.getmodule(code)
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, getattr(module, "__dict__", None)))
    try:
        tree = _parsed(text)
    except SyntaxError as error:
        raise LiftError(f"the source of its {code.co_name} is not there ({error})") from error
    if text and not _is_current(code, text, module):
        raise LiftError(
            f"{code.co_filename} changed since its {code.co_name} was imported; start Python again, or import the "
            "module again and build the network anew"
        )
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                return _bare(deepcopy(node), name)
    raise LiftError(f"the source of its {code.co_name} is not there")


def _is_current(code: CodeType, text: str, module: ModuleType | None) -> bool:
    """Whether a function is what the text of its file says; True if another loader than Python's own changed it."""
    loader = getattr(module, "__loader__", None)
    if type(loader) is not SourceFileLoader or getattr(module, "__file__", None) != code.co_filename:
        return True
    there = _compiled(text, code.co_filename, code.co_flags & _FUTURE)
    return any(_is_same(code, other) for other in there.get((code.co_qualname, code.co_firstlineno), ()))


@lru_cache(maxsize=16)
def _compiled(text: str, file: str, flags: int) -> dict[tuple[str, int], list[CodeType]]:
    """Return the code of each function in the text of a file, by its name and line."""
    codes: dict[tuple[str, int], list[CodeType]] = defaultdict(list)
    waiting = [compile(text, file, "exec", flags, dont_inherit=True)]
    for code in waiting:
        codes[code.co_qualname, code.co_firstlineno].append(code)
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return codes


def _is_same(code: CodeType, other: CodeType) -> bool:
    """Whether two functions do the same, wherever they are in their files."""
    pairs = zip(code.co_consts, other.co_consts, strict=False)
    return (
        (code.co_code, code.co_names, code.co_varnames, len(code.co_consts))
        == (other.co_code, other.co_names, other.co_varnames, len(other.co_consts))
    ) and all(
        _is_same(own, its) if isinstance(own, CodeType) and isinstance(its, CodeType) else own == its
        for own, its in pairs
    )


def _bare(node: ast.FunctionDef, name: str) -> ast.FunctionDef:
    """Strip the parts of a definition that are evaluated when it runs; the new function copies them from the old."""
    # Python writes self.__name in a class C as self._C__name.
    owner = name.rpartition(".")[0].rpartition(".")[2].lstrip("_")
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and part.attr.startswith("__") and not part.attr.endswith("__"):
            part.attr = f"_{owner}{part.attr}"
    node.decorator_list, node.returns = [], None
    arguments = node.args
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(None) for default in arguments.kw_defaults]
    return node
