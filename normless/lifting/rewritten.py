"""A module with some expressions of its code replaced, of a subclass that copies and pickles like any other."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable
from copy import deepcopy
from functools import cache, update_wrapper
from hashlib import sha256
from types import CellType, FunctionType
from typing import Any

from torch import nn

from normless.errors import FixedArgumentError, LiftError
from normless.lifting.recording import Method, Place

Arguments = Callable[[Any], tuple[list[ast.expr], list[ast.keyword]]]
"""From an expression, whose parts are replaced already, the arguments of the child that is called in its place."""

Position = tuple[int, int, int, int]
Sources = tuple[tuple[str, str], ...]

TURNS = "normless_turns"

_parsed = cache(ast.parse)


def turn(turns: list[int], place: int, modules: tuple[nn.Module, ...]) -> nn.Module:
    """The module for the next run of an expression in one run of its method."""
    turns[place] += 1
    if turns[place] > len(modules):
        raise FixedArgumentError(
            f"A converted network repeats an operation {turns[place]} times or more that ran {len(modules)} times on "
            "the example inputs of its conversion, so that a module is missing. Convert the original network with "
            "example inputs for which it runs as often."
        )
    return modules[turns[place] - 1]


class Rewriter:
    """The forward code of one module, where new children replace expressions of its own methods.

    The module becomes one of a subclass with new methods. All else in its code stays: arguments, control flow, what
    differs between training and evaluation.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.original: Any = getattr(type(module), "normless_original", type(module))
        self.replacements: dict[Place, tuple[list[str], Arguments]] = {}

    def add_child(self, name: str, child: nn.Module) -> str:
        """Give the module a child in its own mode; returns the name it got, `name` or `name_2`, …"""
        number, chosen = 1, name
        while hasattr(self.module, chosen):
            number += 1
            chosen = f"{name}_{number}"
        self.module.add_module(chosen, child.train(self.module.training))
        return chosen

    def replace(self, replacements: dict[Place, tuple[list[str], Arguments]]) -> None:
        """Replace expressions by calls of children, of several in turn; for no child the first argument stays."""
        for method in (place.method for place in replacements):
            if not method.is_final:
                raise LiftError(f"{method.owner.__name__}.{method.name}, where it is, is overridden")
        self.replacements |= replacements
        methods = dict.fromkeys(place.method for place in self.replacements)
        sources = tuple((method.name, self._source(method)) for method in methods)
        self.module.__class__ = _rewritten_class(self.original, sources)

    def _source(self, method: Method) -> str:
        """The new source of a method."""
        definition = _definition(method)
        wanted = [(place.position, *new) for place, new in self.replacements.items() if place.method == method]
        changed = _Transformer(wanted, definition, method.owner.__name__).visit(definition)
        if any(isinstance(one, ast.Name) and one.id == TURNS for one in ast.walk(changed)):
            has_docstring = ast.get_docstring(changed) is not None
            changed.body[has_docstring:has_docstring] = ast.parse(f"{TURNS} = [0] * {len(wanted)}").body
        return ast.unparse(ast.fix_missing_locations(changed))


class _Transformer(ast.NodeTransformer):
    """Replaces the expressions at some positions of a method by calls of children."""

    def __init__(
        self, wanted: list[tuple[Position, list[str], Arguments]], method: ast.FunctionDef, owner: str
    ) -> None:
        self.owner = owner.lstrip("_")
        nodes = [node for node in ast.walk(method) if isinstance(node, (ast.BinOp, ast.AugAssign, ast.Call))]
        first = [*method.args.posonlyargs, *method.args.args]
        if not first:
            raise LiftError(f"its {method.name} does not name the module among its arguments")
        self.targets: dict[ast.AST, tuple[str, Arguments]] = {}
        for number, (position, names, arguments) in enumerate(wanted):
            children = [f"{first[0].arg}.{name}" for name in names]
            turn_of_several = f"normless_turn({TURNS}, {number}, ({', '.join(children)}))"
            child = turn_of_several if len(children) > 1 else "".join(children)
            self.targets[_at(nodes, position)] = (child, arguments)

    def visit(self, node: ast.AST) -> Any:
        visited = super().visit(node)
        if node not in self.targets:
            return visited
        child, arguments = self.targets[node]
        if isinstance(node, ast.AugAssign):
            target = ast.parse(ast.unparse(node.target), mode="eval").body
            visited = ast.BinOp(target, node.op, node.value)
        args, keywords = arguments(visited)
        new = ast.Call(ast.parse(child, mode="eval").body, args, keywords) if child else args[0]
        return ast.Assign([node.target], new) if isinstance(node, ast.AugAssign) else new

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        # Python writes self.__name in a class C as self._C__name.
        self.generic_visit(node)
        if node.attr.startswith("__") and not node.attr.endswith("__"):
            node.attr = f"_{self.owner}{node.attr}"
        return node


def _at(nodes: list[ast.BinOp | ast.AugAssign | ast.Call], position: Position) -> ast.AST:
    """The operator at a position, else the call that ends there: one of a method starts at the method's name."""
    for node in nodes:
        place = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset)
        if not isinstance(node, ast.Call) and place == position:
            return node
    end = (position[1], position[3])
    for node in nodes:
        if isinstance(node, ast.Call) and (node.end_lineno, node.end_col_offset) == end:
            return node
    raise LiftError(f"line {position[0]} of its source does not hold what ran there")


def _definition(method: Method) -> ast.FunctionDef:
    """The syntax tree of a method, with the positions of its file; a copy, since the tree of a file is shared."""
    code = _innermost(method.owner, method.name).__code__
    try:
        tree = _parsed("".join(inspect.findsource(code)[0]))
    except (OSError, SyntaxError) as error:
        raise LiftError(f"the source of its {method.name} is not there ({error})") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                return _bare(deepcopy(node))
    raise LiftError(f"the source of its {method.name} is not there")


def _bare(node: ast.FunctionDef) -> ast.FunctionDef:
    """A definition without what is evaluated when it runs; the new function takes that from the old one."""
    node.decorator_list, node.returns = [], None
    arguments = node.args
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [one and ast.Constant(None) for one in arguments.kw_defaults]
    return node


def _innermost(owner: type, name: str) -> Any:
    """The function of a method, inside its decorators."""
    member = vars(owner)[name]
    return inspect.unwrap(member.__func__ if isinstance(member, (staticmethod, classmethod)) else member)


@cache
def _rewritten_class(original: type[nn.Module], sources: Sources) -> type[nn.Module]:
    """The subclass of a class with some methods as new sources; one and the same for the same sources."""
    members: dict[str, Any] = {name: _compiled(original, name, source) for name, source in sources}
    members |= {"normless_original": original, "normless_sources": sources, "__reduce_ex__": _reduce}
    members |= {name: getattr(original, name) for name in ("__module__", "__qualname__")}
    return type(original.__name__, (original,), members)


def _compiled(original: type[nn.Module], name: str, source: str) -> Any:
    """A method from its source; globals, enclosed variables, defaults and decorators are those of the one before."""
    owner = next(one for one in original.__mro__ if name in vars(one))
    old = _innermost(owner, name)
    enclosed = dict(
        zip(old.__code__.co_freevars, (cell.cell_contents for cell in old.__closure__ or ()), strict=True)
    )
    # A method that calls super() finds its class in the variable __class__.
    enclosed |= {"__class__": owner, "normless_turn": turn}
    tree = ast.parse(f"def normless_method({', '.join(enclosed)}):\n    return {old.__code__.co_name}")
    tree.body[0].body[:0] = ast.parse(source).body  # type: ignore[attr-defined]
    text = ast.unparse(tree)
    file = f"<{original.__qualname__}.{name} rewritten by normless, {sha256(text.encode()).hexdigest()[:8]}>"
    # Tracebacks and inspect show the new source.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {}
    exec(compile(text, file, "exec", dont_inherit=True), old.__globals__, space)
    new = space["normless_method"](**enclosed)
    for attribute in ("__defaults__", "__kwdefaults__", "__annotations__", "__module__", "__qualname__", "__dict__"):
        setattr(new, attribute, getattr(old, attribute))
    return _decorated(vars(owner)[name], old, new)


def _decorated(member: Any, old: Any, new: Any) -> Any:
    """A method as it is in its class, with a new function in the place of the one inside its decorators."""
    if member is old:
        return new
    if isinstance(member, (staticmethod, classmethod)):
        return type(member)(_decorated(member.__func__, old, new))
    inner = member.__wrapped__
    cells = getattr(member, "__closure__", None) or ()
    if not any(cell.cell_contents is inner for cell in cells):
        raise LiftError(f"its {old.__name__} is decorated in a way that hides its function")
    replaced = _decorated(inner, old, new)
    closure = tuple(CellType(replaced) if cell.cell_contents is inner else cell for cell in cells)
    wrapper = FunctionType(member.__code__, member.__globals__, member.__name__, member.__defaults__, closure)
    wrapper.__kwdefaults__ = member.__kwdefaults__
    return update_wrapper(wrapper, replaced)


def _reduce(self: nn.Module, protocol: object) -> tuple[Any, ...]:
    kind: Any = type(self)
    return _restored, (kind.normless_original, kind.normless_sources), self.__dict__.copy()


def _restored(original: Any, sources: Sources) -> nn.Module:
    kind = _rewritten_class(original, sources)
    return kind.__new__(kind)
