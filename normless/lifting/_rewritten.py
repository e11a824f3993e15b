"""Replace expressions in a module's code by calls of children, in a subclass that copies and pickles normally."""

from __future__ import annotations

import ast
import inspect
import linecache
import pickle
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial, update_wrapper
from hashlib import sha256
from itertools import chain
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple

from torch import Tensor, nn

from normless.errors import LiftError
from normless.lifting._source import definition_of
from normless.lifting._turns import LOOPS, REPEATING, contains, in_turns, turn
from normless.recording._places import Place, Routine

Arguments = Callable[[Any], tuple[list[ast.expr], list[ast.keyword]]]
"""Returns the arguments for the child that replaces an expression; parts of the expression are already replaced."""

SourceSpan = tuple[int, int, int, int]
_Target = tuple[SourceSpan, str, Arguments]
Sources = tuple[tuple[str, str, "FunctionType | tuple[type, str]"], ...]
"""The name and source of each new function, and the original function, or its class and name there."""

Methods = tuple[tuple[str, Callable[..., Any]], ...]
MODULE, TURNS = "normless_module", "normless_turns"


def interpolated(start: Tensor, end: Tensor, weight: Tensor | float, from_start: bool) -> tuple[Tensor, Tensor]:
    """Return the two terms of torch.lerp(start, end, weight): the skip path (start or end) and the step from it."""
    return (start, weight * (end - start)) if from_start else (end, (1 - weight) * (start - end))


@dataclass(frozen=True)
class TakeArguments:
    """`Arguments` by a function of a setting and the expression; those of equal settings are equal."""

    function: Callable[[Any, Any], tuple[list[ast.expr], list[ast.keyword]]]
    setting: Any

    def __call__(self, node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
        """Return the arguments for the child that replaces the expression `node`."""
        return self.function(self.setting, node)


class _Function(NamedTuple):
    """A function to rewrite.

    Attributes:
        name: its name in the subclass.
        function: the original function.
        bound: the object to which its first argument is bound, or None.
        origin: its origin as in `Sources`.
        caller: the call that a copy serves, None for a method of the module's class.
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
    """Replace expressions in the methods of a module by calls of new children.

    The module's class becomes a subclass with new methods. Everything else in the code is unchanged: arguments,
    control flow, differences between training and evaluation. If a method calls a function that is not a method, the
    subclass has a copy of the function for each place of a call, a static method that receives the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.original: Any = getattr(type(module), "normless_original", type(module))
        self.replacements: dict[Place, tuple[list[str], Arguments]] = {}
        self.functions: dict[Place | Routine, _Function] = {}

    def add_child(self, name: str, child: nn.Module) -> str:
        """Add a child in the module's mode, and return its name: `name` or `name_2`, …"""
        number, chosen = 1, name
        while hasattr(self.module, chosen):
            number += 1
            chosen = f"{name}_{number}"
        self.module.add_module(chosen, child.train(self.module.training))
        return chosen

    def replace(self, replacements: dict[Place, tuple[list[str], Arguments]]) -> None:
        """Replace expressions by calls of children, several in turn, or by their first argument without a child."""
        for place, (names, _) in replacements.items():
            self._function(place)
            if len({*names}) > 1 and not self._loops_around(place):
                raise LiftError(
                    f"line {place.position[0]} of its code, in {place.routine.name}, runs for several branches, and "
                    "no loop around it tells which is next; add in a module of each branch"
                )
        self.replacements |= replacements
        sources = (
            (function.name, self._source(key, function), function.origin) for key, function in self.functions.items()
        )
        methods = getattr(type(self.module), "normless_methods", ())
        self.module.__class__ = _rewritten_class(self.original, tuple(sources), methods)
        for name, value in list(vars(self.module).items()):
            if name not in ("_modules", "_parameters", "_buffers"):
                vars(self.module)[name] = self._rebound(value)

    def _rebound(self, value: Any) -> Any:
        """Replace bound methods of the module inside an attribute's value by those of its new class."""
        if isinstance(value, MethodType) and value.__self__ is self.module:
            new = getattr(self.module, value.__func__.__name__, value)
            return new if getattr(new, "__qualname__", "") == value.__func__.__qualname__ else value
        if type(value) is partial:
            return partial(self._rebound(value.func), *value.args, **value.keywords)
        if type(value) is dict:
            return {key: self._rebound(member) for key, member in value.items()}
        return type(value)(map(self._rebound, value)) if type(value) in (list, tuple) else value

    def _source(self, key: Place | Routine, function: _Function) -> str:
        """Return the new source of a function."""
        targets: list[_Target] = []
        loops: list[tuple[SourceSpan, int]] = []
        for number, (place, (names, arguments)) in enumerate(self.replacements.items()):
            order, own = in_turns(names)
            counted = self._counted(place) if order == "loop" else None
            if order == "loop" and counted is None:
                order, own = "once", names
            elif counted is not None and counted[0] == key:
                loops.append((counted[1], number))
            if key == (place.caller or place.routine):
                children = [f"{function.module}.{name}" for name in own]
                turn_of_several = f"normless_turn({TURNS}, {number}, ({', '.join(children)}), {order!r})"
                child = turn_of_several if len(children) > 1 else "".join(children)
                targets.append((place.position, child, arguments))
        changes = tuple(targets), tuple(loops)
        return _source(function.function, changes, function.caller is not None, len(self.replacements))

    def _loops_around(self, place: Place) -> list[tuple[Place | Routine, ast.AST]]:
        """Return what repeats a place or the calls of its function, innermost first, with the keys of functions."""
        around: list[tuple[Place | Routine, ast.AST]] = []
        for step in place.chain():
            key = step.caller or step.routine
            definition = definition_of(self.functions[key].function)
            inside = (node for node in ast.walk(definition) if node is not definition and isinstance(node, REPEATING))
            around += [(key, node) for node in inside if contains(node, step)][::-1]
        return around

    def _counted(self, place: Place) -> tuple[Place | Routine, SourceSpan] | None:
        """Return the loop whose starts say for which branch a place runs; None if it is in one loop."""
        loops = self._loops_around(place)
        if len(loops) < 2:
            return None
        key, loop = loops[0]
        if not isinstance(loop, LOOPS):
            raise LiftError(
                f"line {place.position[0]} of its code, in {place.routine.name}, runs several times for each of "
                "several branches, and not in a `for` or `while` loop; add in such a loop, or in a module of each "
                "branch"
            )
        return key, _position(loop)

    def _function(self, place: Place) -> _Function:
        """Return the function of a place; replace the call of a function that is not a method by a call of a copy."""
        routine, caller = place.routine, place.caller
        known = self.functions.get(caller or routine)
        if known is not None:
            return known
        origin = routine.owner and (routine.owner, routine.name)
        if caller is None:
            made = _Function(routine.name, inspect.unwrap(vars(routine.owner)[routine.name]), self.module, origin)
        else:
            outer = self._function(caller)
            call: Any = _at(definition_of(outer.function), caller.position)
            value, receiver = _called(outer, call.func)
            given = None
            if _code(value) is not routine.code:
                # A function may be passed to its caller, as to map.
                given = next(
                    (at for at, argument in enumerate(call.args) if isinstance(argument, (ast.Name, ast.Attribute))),
                    0,
                )
                value, receiver = _called(outer, call.args[given]) if call.args else (None, [])
            function = getattr(value, "__func__", value)
            if _code(value) is not routine.code or not (origin or _is_importable(function)):
                raise LiftError(f"its {routine.name} does it, which is not a function of a module or a class")
            name = f"normless_{routine.name.strip('_')}_{len(self.functions)}"
            made = _Function(name, function, getattr(value, "__self__", None), origin or function, caller)
            self.replacements[caller] = _call_of_copy(name, outer.module, receiver, given)
        self.functions[caller or routine] = made
        return made


@lru_cache(maxsize=1024)
def _source(
    function: Any,
    changes: tuple[tuple[_Target, ...], tuple[tuple[SourceSpan, int], ...]],
    is_copy: bool,
    turns: int,
) -> str:
    """Return the source of a function with calls of children at some positions; blocks of one class share it.

    `changes` are these calls, and the loops whose starts are counted.
    """
    definition = definition_of(function)
    targets, loops = changes
    counted: dict[SourceSpan, list[int]] = defaultdict(list)
    for position, number in loops:
        counted[position].append(number)
    transformer = _Transformer({_at(definition, place): target for place, *target in targets}, dict(counted))
    changed = transformer.visit(definition)
    if is_copy:
        changed.args.kwonlyargs += [ast.arg(MODULE), ast.arg(TURNS)]
        changed.args.kw_defaults += [None, None]
    elif any(isinstance(node, ast.Name) and node.id == TURNS for node in ast.walk(changed)):
        has_docstring = ast.get_docstring(changed) is not None
        changed.body[has_docstring:has_docstring] = ast.parse(f"{TURNS} = [0] * {turns}").body
    return ast.unparse(ast.fix_missing_locations(changed))


def _called(outer: _Function, name: Any) -> tuple[Any, list[ast.expr]]:
    """Return the function or bound method of a name, and the expression that is bound to its first argument."""
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
    """Return the replacement of a call by a call of a copied function, which may be the argument number `given`."""
    bound = "".join(f"{ast.unparse(expression)}, " for expression in receiver)
    text = f"lambda *args, **kwargs: {module}.{name}({bound}*args, **kwargs, {MODULE}={module}, {TURNS}={TURNS})"
    return [], TakeArguments(_with_copy, (text, given))


def _with_copy(setting: tuple[str, int | None], node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    text, given = setting
    copy = ast.parse(text, mode="eval").body
    if given is None:
        node.func = copy
    else:
        node.args[given] = copy
    return [node], []


def _is_importable(function: Any) -> bool:
    """Whether a function can be pickled, because it has a name in a module or a class."""
    try:
        return pickle.loads(pickle.dumps(function)) is function
    except (pickle.PicklingError, AttributeError):
        return False


@dataclass
class _Transformer(ast.NodeTransformer):
    """Replace expressions of a function by calls of children."""

    targets: dict[ast.AST, Any]
    loops: dict[SourceSpan, list[int]]

    def visit(self, node: ast.AST) -> Any:
        visited = super().visit(node)
        if isinstance(node, LOOPS):
            counts = self.loops.get(_position(node), ())
            return [*(ast.parse(f"{TURNS}[{number}] += 1").body[0] for number in counts), visited]
        if node not in self.targets:
            return visited
        child, arguments = self.targets[node]
        if isinstance(node, ast.AugAssign):
            target = ast.parse(ast.unparse(node.target), mode="eval").body
            visited = ast.BinOp(target, node.op, node.value)
        args, keywords = arguments(visited)
        new = ast.Call(ast.parse(child, mode="eval").body, args, keywords) if child else args[0]
        return ast.Assign([node.target], new) if isinstance(node, ast.AugAssign) else new


def _at(definition: ast.FunctionDef, position: SourceSpan) -> ast.AST:
    """Return the operator at a position, else the call that ends there, since a method call starts at its name.

    For the targets of an assignment, return the value: an iterator runs while the targets are unpacked.
    """
    nodes = list(ast.walk(definition))
    operators = (
        node for node in nodes if isinstance(node, ast.BinOp | ast.AugAssign) and _position(node) == position
    )
    calls = (node for node in nodes if isinstance(node, ast.Call) and _position(node)[1::2] == position[1::2])
    values = (node.value for node in nodes if isinstance(node, ast.Assign) and _position(node.targets[0]) == position)
    node = next(chain(operators, calls, values), None)
    if node is None:
        raise LiftError(f"line {position[0]} of its source does not contain the expression that ran there")
    return node


def _position(node: Any) -> SourceSpan:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _enclosed(function: Any) -> dict[str, Any]:
    """Return the variables of enclosing functions that a function reads."""
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return dict(zip(function.__code__.co_freevars, cells, strict=True))


def give_method(module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    """Turn a module's class into a subclass with another method, an importable function."""
    kind: Any = type(module)
    original, sources = getattr(kind, "normless_original", kind), getattr(kind, "normless_sources", ())
    module.__class__ = _rewritten_class(original, sources, ((name, function),))


@cache
def _rewritten_class(original: type[nn.Module], sources: Sources, methods: Methods) -> type[nn.Module]:
    """Return the subclass of a class with functions from new sources, and other methods; the same for the same."""
    members: dict[str, Any] = {}
    for name, source, origin in sources:
        member = vars(origin[0])[origin[1]] if isinstance(origin, tuple) else origin
        old = inspect.unwrap(member)
        new = _compiled(original, name, source, old)
        members[name] = staticmethod(new) if name.startswith("normless_") else _decorated(member, old, new)
    members |= {"normless_original": original, "normless_sources": sources, "normless_methods": methods}
    members |= {"__reduce_ex__": _reduce, **dict(methods)}
    members |= {name: getattr(original, name) for name in ("__module__", "__qualname__")}
    return type(original.__name__, (original,), members)


def _compiled(original: type[nn.Module], name: str, source: str, old: Any) -> Any:
    """Compile a function from its source with the globals, enclosed variables and defaults of the old function."""
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
    """Return a decorated method with the function inside its decorators replaced."""
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
    return _restored, (kind.normless_original, kind.normless_sources, kind.normless_methods), self.__dict__.copy()


def _restored(original: Any, sources: Sources, methods: Methods) -> nn.Module:
    kind = _rewritten_class(original, sources, methods)
    return kind.__new__(kind)
