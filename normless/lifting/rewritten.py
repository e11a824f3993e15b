"""A module with some expressions of its code replaced, of a subclass that copies and pickles like any other."""

from __future__ import annotations

import ast
import inspect
import linecache
import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial, update_wrapper
from hashlib import sha256
from itertools import chain
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from torch import Tensor, nn

from normless.errors import FixedArgumentError, LiftError
from normless.lifting.places import Place, Routine

Arguments = Callable[[Any], tuple[list[ast.expr], list[ast.keyword]]]
"""From an expression, whose parts are replaced already, the arguments of the child that is called in its place."""

Position = tuple[int, int, int, int]
Sources = tuple[tuple[str, str, "FunctionType | tuple[type, str]"], ...]
"""The name and the source of each new function, and the one that it is made from, or its class and name there."""

MODULE, TURNS = "normless_module", "normless_turns"

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


def interpolated(start: Tensor, end: Tensor, weight: Tensor | float, from_start: bool) -> tuple[Tensor, Tensor]:
    """The two terms of torch.lerp(start, end, weight): the skip path, start or else end, and the step from there."""
    return (start, weight * (end - start)) if from_start else (end, (1 - weight) * (start - end))


class _Function(NamedTuple):
    """A function that is rewritten: its name in the subclass, what its first argument is bound to, None if nothing.

    `origin` is that of `Sources`; `caller` is the call that a copy serves, None for a method of the module's class.
    """

    name: str
    function: Any
    bound: Any
    origin: Any
    caller: Place | None = None

    @property
    def first(self) -> str:
        """The name of its first argument."""
        code = self.function.__code__
        return str(code.co_varnames[0]) if code.co_argcount else ""

    @property
    def module(self) -> str:
        """The name of the module in its source."""
        if not (self.caller or self.first):
            raise LiftError(f"its {self.name} does not name the module among its arguments")
        return MODULE if self.caller else self.first


class Rewriter:
    """The forward code of one module, where new children replace expressions of its own methods.

    The module becomes one of a subclass with new methods. All else in its code stays: arguments, control flow, what
    differs between training and evaluation. Of a function that a method calls, and that is none itself, the subclass
    has a copy for each place of a call, a static method that knows the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.original: Any = getattr(type(module), "normless_original", type(module))
        self.replacements: dict[Place, tuple[list[str], Arguments]] = {}
        self.functions: dict[Place | Routine, _Function] = {}

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
        for place in replacements:
            self._function(place)
        self.replacements |= replacements
        sources = ((one.name, self._source(key, one), one.origin) for key, one in self.functions.items())
        self.module.__class__ = _rewritten_class(self.original, tuple(sources))
        for name, value in list(vars(self.module).items()):
            if name not in ("_modules", "_parameters", "_buffers"):
                vars(self.module)[name] = self._rebound(value)

    def _rebound(self, value: Any) -> Any:
        """A value that the module keeps, with its own methods as those of the class that it has now."""
        if isinstance(value, MethodType) and value.__self__ is self.module:
            new = getattr(self.module, value.__func__.__name__, value)
            return new if getattr(new, "__qualname__", "") == value.__func__.__qualname__ else value
        if type(value) is partial:
            return partial(self._rebound(value.func), *value.args, **value.keywords)
        if type(value) is dict:
            return {key: self._rebound(one) for key, one in value.items()}
        return type(value)(map(self._rebound, value)) if type(value) in (list, tuple) else value

    def _source(self, key: Place | Routine, function: _Function) -> str:
        """The new source of a function."""
        definition = _definition(function.function)
        targets: dict[ast.AST, tuple[str, Arguments]] = {}
        for number, (place, (names, arguments)) in enumerate(self.replacements.items()):
            if key == (place.caller or place.routine):
                children = [f"{function.module}.{name}" for name in names]
                turn_of_several = f"normless_turn({TURNS}, {number}, ({', '.join(children)}))"
                child = turn_of_several if len(children) > 1 else "".join(children)
                targets[_at(definition, place.position)] = (child, arguments)
        changed = _Transformer(targets).visit(definition)
        if function.caller:
            changed.args.kwonlyargs += [ast.arg(MODULE), ast.arg(TURNS)]
            changed.args.kw_defaults += [None, None]
        elif any(isinstance(one, ast.Name) and one.id == TURNS for one in ast.walk(changed)):
            has_docstring = ast.get_docstring(changed) is not None
            turns = ast.parse(f"{TURNS} = [0] * {len(self.replacements)}")
            changed.body[has_docstring:has_docstring] = turns.body
        return ast.unparse(ast.fix_missing_locations(changed))

    def _function(self, place: Place) -> _Function:
        """The function in which a place is; a call of one that is no method is replaced by that of a copy."""
        routine, caller = place.routine, place.caller
        known = self.functions.get(caller or routine)
        if known is not None:
            return known
        origin = routine.owner and (routine.owner, routine.name)
        if caller is None:
            made = _Function(routine.name, inspect.unwrap(vars(routine.owner)[routine.name]), self.module, origin)
        else:
            outer = self._function(caller)
            call: Any = _at(_definition(outer.function), caller.position)
            value, receiver = _called(outer, call.func)
            given = None
            if _code(value) is not routine.code:
                # A function may be given to what calls it, as to map.
                given = next(
                    (at for at, one in enumerate(call.args) if isinstance(one, (ast.Name, ast.Attribute))), 0
                )
                value, receiver = _called(outer, call.args[given]) if call.args else (None, [])
            function = getattr(value, "__func__", value)
            if _code(value) is not routine.code or not (origin or _is_importable(function)):
                raise LiftError(f"its {routine.name} does it, which is no function of a module or a class")
            name = f"normless_{routine.name.strip('_')}_{len(self.functions)}"
            made = _Function(name, function, getattr(value, "__self__", None), origin or function, caller)
            self.replacements[caller] = _call_of_copy(name, outer.module, receiver, given)
        self.functions[caller or routine] = made
        return made


def _called(outer: _Function, name: Any) -> tuple[Any, list[ast.expr]]:
    """The function or bound method of a name, and the expression of what is bound to its first argument."""
    text = ast.unparse(name)
    if not all(part.isidentifier() for part in text.replace("super()", "super").split(".")):
        raise LiftError(f"`{text}` does not name the function that does it")
    names = {**outer.function.__globals__, **_enclosed(outer.function)}
    names |= {} if outer.bound is None else {outer.first: outer.bound}
    try:
        value = eval(text.replace("super()", f"super(__class__, {outer.first})"), names)
    except (NameError, AttributeError) as error:
        raise LiftError(f"`{text}` does not name the function that does it ({error})") from error
    if isinstance(value, FunctionType):
        return value, []
    if not isinstance(value, MethodType):
        return value.__call__, [name]
    return value, [ast.Name(outer.first, ast.Load()) if text.startswith("super()") else name.value]


def _code(value: Any) -> Any:
    return getattr(getattr(value, "__func__", value), "__code__", None)


def _call_of_copy(name: str, module: str, receiver: list[ast.expr], given: int | None) -> tuple[list[str], Arguments]:
    """The replacement of a call that runs a copied function, which is called, or the argument of this number."""

    def replaced(node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
        bound = "".join(f"{ast.unparse(one)}, " for one in receiver)
        text = f"lambda *args, **kwargs: {module}.{name}({bound}*args, **kwargs, {MODULE}={module}, {TURNS}={TURNS})"
        copy = ast.parse(text, mode="eval").body
        if given is None:
            node.func = copy
        else:
            node.args[given] = copy
        return [node], []

    return [], replaced


def _is_importable(function: Any) -> bool:
    """Whether a function pickles, as one that has a name in a module or a class does."""
    try:
        return pickle.loads(pickle.dumps(function)) is function
    except (pickle.PicklingError, AttributeError):
        return False


@dataclass
class _Transformer(ast.NodeTransformer):
    """Replaces some expressions of a function by calls of children."""

    targets: dict[ast.AST, tuple[str, Arguments]]

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


def _at(definition: ast.FunctionDef, position: Position) -> ast.AST:
    """The operator at a position, else the call that ends there: one of a method starts at the method's name.

    At the targets of an assignment it is the value, which runs as they are unpacked if it is an iterator.
    """
    nodes = list(ast.walk(definition))
    operators = (one for one in nodes if isinstance(one, ast.BinOp | ast.AugAssign) and _position(one) == position)
    calls = (one for one in nodes if isinstance(one, ast.Call) and _position(one)[1::2] == position[1::2])
    values = (one.value for one in nodes if isinstance(one, ast.Assign) and _position(one.targets[0]) == position)
    node = next(chain(operators, calls, values), None)
    if node is None:
        raise LiftError(f"line {position[0]} of its source does not hold what ran there")
    return node


def _position(node: Any) -> Position:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _definition(function: Any) -> ast.FunctionDef:
    """The syntax tree of a function, with the positions of its file; a copy, since blocks of one class share it."""
    return deepcopy(_shared_definition(function.__code__, function.__qualname__))


@cache
def _shared_definition(code: CodeType, name: str) -> ast.FunctionDef:
    try:
        tree = _parsed("".join(inspect.findsource(code)[0]))
    except (OSError, SyntaxError) as error:
        raise LiftError(f"the source of its {code.co_name} is not there ({error})") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                return _bare(deepcopy(node), name)
    raise LiftError(f"the source of its {code.co_name} is not there")


def _bare(node: ast.FunctionDef, name: str) -> ast.FunctionDef:
    """A definition without what is evaluated when it runs; the new function takes that from the old one."""
    # Python writes self.__name in a class C as self._C__name.
    owner = name.rpartition(".")[0].rpartition(".")[2].lstrip("_")
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and one.attr.startswith("__") and not one.attr.endswith("__"):
            one.attr = f"_{owner}{one.attr}"
    node.decorator_list, node.returns = [], None
    arguments = node.args
    for argument in ast.walk(arguments):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [one and ast.Constant(None) for one in arguments.kw_defaults]
    return node


def _enclosed(function: Any) -> dict[str, Any]:
    """The variables of the functions around a function that it reads."""
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return dict(zip(function.__code__.co_freevars, cells, strict=True))


@cache
def _rewritten_class(original: type[nn.Module], sources: Sources) -> type[nn.Module]:
    """The subclass of a class with some functions from new sources; one and the same for the same sources."""
    members: dict[str, Any] = {}
    for name, source, origin in sources:
        member = vars(origin[0])[origin[1]] if isinstance(origin, tuple) else origin
        old = inspect.unwrap(member)
        new = _compiled(original, name, source, old)
        members[name] = staticmethod(new) if name.startswith("normless_") else _decorated(member, old, new)
    members |= {"normless_original": original, "normless_sources": sources, "__reduce_ex__": _reduce}
    members |= {name: getattr(original, name) for name in ("__module__", "__qualname__")}
    return type(original.__name__, (original,), members)


def _compiled(original: type[nn.Module], name: str, source: str, old: Any) -> Any:
    """A function from its source; globals, enclosed variables and defaults are those of the one before."""
    enclosed = _enclosed(old) | {"normless_turn": turn, "normless_interpolated": interpolated}
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
    return new


def _decorated(member: Any, old: Any, new: Any) -> Any:
    """A method as it is in its class, with a new function in the place of the one inside its decorators."""
    if member is old:
        return new
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
