"""Convert operators in forward code to modules where an edit needs them."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.copying import copied
from normless.errors import LiftError
from normless.lifting._rewritten import Arguments, Rewriter, TakeArguments
from normless.nn import ResidualSum
from normless.nn._function import Function
from normless.recording._calls import Call
from normless.recording._places import Place
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless.residual._blocks import Addition, NormTerm
from normless.residual._graph import Dataflow


@dataclass
class Lifted:
    """Convert sums, activations and norms that are operators in a network's forward code to modules.

    All sums of a module are lifted together. Every method raises LiftError, with the reason and the module, if an
    operator cannot be converted.

    Attributes:
        model: the network.
        map: its residual map.
        sums: the paths of `ResidualSum`s by the call that they replace.
        moved: the paths of modules by the keys of the layers that they replace.
        runs: how often a new module runs in a run of the module around it, by its path.
    """

    model: nn.Module
    map: ResidualMap
    sums: dict[Call, str] = field(default_factory=dict)
    moved: dict[Hashable, str] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)
    _rewriters: dict[nn.Module, Rewriter] = field(default_factory=dict)

    @property
    def flow(self) -> Dataflow:
        """The dataflow of the network before the edits."""
        return self.map.flow

    @cached_property
    def _additions(self) -> dict[str, list[Addition]]:
        """The additions of all residual sums, by the path of the module with the code."""
        additions: dict[str, list[Addition]] = defaultdict(list)
        for block in self.map.walk():
            for addition in block.additions:
                additions[addition.made_by.module].append(addition)
        return additions

    @cached_property
    def _readers(self) -> dict[str, set[tuple[str, str]]]:
        """The paths of the layers, and of the modules with code, that read each parameter, also outside the part."""
        readers: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for layer in self.map.layers():
            for name in layer.parameters:
                readers[name].add(("layer", layer.path))
        for operation in self.flow.operations:
            for name in operation.parameters:
                readers[name].add(("code", operation.module))
        return readers

    def sums_of(self, block: ResidualBlock) -> tuple[str, ...]:
        """Return the paths of the `ResidualSum`s that add a block's branches, in the order of `additions`."""
        if not block.additions:
            raise LiftError("its residual sum is not an addition of two tensors in forward code")
        for addition in block.additions:
            if addition.made_by not in self.sums:
                self._lift_sums(addition.made_by.module)
        return tuple(self.sums[addition.made_by] for addition in block.additions)

    def _lift_sums(self, path: str) -> None:
        """Replace each residual sum `a + b` in a module's code by `self.residual_sum(a, b)`.

        A module with runs that add for several blocks is copied for each block.
        """
        runs: dict[Call | None, dict[Call, int]] = defaultdict(dict)
        for addition in self._additions[path]:
            runs[addition.made_by.around][addition.made_by] = addition.branch
        is_first = all(call.run == 0 for branch_of in runs.values() for call in branch_of)
        copies = {} if is_first else self._separated(path)
        for run, branch_of in runs.items():
            self._lift_run(path if run is None else copies.get(run, path), branch_of)

    def _lift_run(self, path: str, branch_of: Mapping[Call, int]) -> None:
        """Replace the residual sums of the module at a path, given the calls that add in one of its runs."""
        calls_in_code = self.flow.calls_in[next(iter(branch_of)).module]
        self._need_alike(branch_of, calls_in_code)
        rewriter = self._rewriter(path)
        places = _by_place(branch_of)
        chosen = {call for calls in places.values() for call in calls}
        in_order = (call for call in calls_in_code if call in chosen)
        names = self._children(path, in_order, lambda _: ("residual_sum", ResidualSum()))
        replacements: dict[Place, tuple[list[str], Arguments]] = {}
        for place, calls in places.items():
            branches = {branch_of[call] for call in calls if call in branch_of}
            if len(branches) > 1:
                raise LiftError(f"line {place.position[0]} of its code adds the branch now as first, now as second")
            replacements[place] = [names[call] for call in calls], TakeArguments(_terms, branches.pop())
        rewriter.replace(replacements)
        self.sums |= {call: _join(path, names[call]) for call in branch_of}

    def _children(
        self,
        path: str,
        calls: Iterable[Call],
        make: Callable[[Call], tuple[str, nn.Module]],
        keys: Mapping[Call, Hashable] | None = None,
    ) -> dict[Call, str]:
        """Give the module at a path a child for each of the calls, one for those that steps of a loop repeat.

        `keys` are the keys of the layers that the calls run, if these are not functions.
        """
        rewriter, names, own = self._rewriter(path), dict[Call, str](), dict[Hashable, str]()
        for call in calls:
            key = (keys or {}).get(call, call)
            first = self.map.alike.get(key, key)
            if first not in own:
                own[first] = rewriter.add_child(*make(call))
            names[call] = own[first]
        self.runs |= {_join(path, name): times for name, times in Counter(names.values()).items()}
        return names

    def _need_alike(self, sums: Iterable[Call], calls_in_code: Iterable[Call]) -> None:
        """Check that the calls of residual sums add two activations in every run of their module."""
        spots = {call.spot for call in sums}
        for call in calls_in_code:
            operations = [self.flow[at] for at in self.flow.parts.get(call, ())]
            if operations and call.spot in spots and any(len({*operation.operands}) < 2 for operation in operations):
                raise LiftError(f"{call.module or 'the network'} runs several times and adds no branch in one")

    def module_of(self, layer: Layer) -> str:
        """Return the path of a module that is only this layer: it replaces a function or one call of a module."""
        if layer.key not in self.moved and ":" in layer.path:
            self._lift_function(self._call_of(layer))
        elif layer.key not in self.moved:
            copies = self._separated(layer.path)
            self.moved |= {key: copies[run] for run, key in self._runs_of(layer.path).items()}
        return self.moved[layer.key]

    def _runs_of(self, path: str) -> dict[Call, tuple[str, int]]:
        """The runs of a module with the keys of its layers; a run on constants alone is not a run of the layer."""
        runs = dict.fromkeys(filter(None, (_run_around(call, path) for call in self.flow.parts)))
        return {run: (path, number) for number, run in enumerate(runs)}

    def note_moved(self, layer: Layer, path: str) -> None:
        """Note that a layer that was a function is now the module at a path."""
        self.moved[layer.key] = path

    def calls(
        self, call: Call, make: Callable[[], nn.Module], keys: Mapping[Call, Hashable], arguments: Arguments
    ) -> list[str]:
        """Replace a call by children, one for the calls at its place with equal keys, and return their paths.

        If children replace the call already, they are kept.
        """
        place, rewriter = _free(call), self._rewriter(call.module)
        if place not in rewriter.replacements:
            names = self._children(call.module, call.turns, lambda _: ("attention_logits", make()), keys)
            rewriter.replace({place: ([*names.values()], arguments)})
        return [_join(call.module, name) for name in dict.fromkeys(rewriter.replacements[place][0])]

    def _lift_function(self, call: Call) -> None:
        place, rewriter = _free(call), self._rewriter(call.module)
        given = [[*turn.args[1:], *turn.kwargs.values()] for turn in call.turns]
        if any(value is Tensor for values in given for value in values):
            raise LiftError(f"{call.name} takes more than one tensor there")
        if any(isinstance(value, (torch.SymInt, torch.SymFloat)) for values in given for value in values):
            raise LiftError(f"the arguments of {call.name} depend on the values of tensors")
        if place in rewriter.replacements:
            raise LiftError(f"the runs of {call.module} share its forward code; only= converts other modules")
        for turn in call.turns:
            first = self.map.alike.get(turn, turn)
            if isinstance(first, Call) and (turn.args, turn.kwargs) != (first.args, first.kwargs):
                raise LiftError(f"the steps of a loop give {call.name} different arguments")
        names = self._children(
            call.module, call.turns, lambda turn: (call.name, Function(turn.function, turn.args[1:], turn.kwargs))
        )
        rewriter.replace({place: ([*names.values()], TakeArguments(_operand, NormTerm(place, 0)))})
        self.moved |= {turn: _join(call.module, name) for turn, name in names.items()}

    def drop(self, layer: Layer) -> None:
        """Remove a function or formula from forward code, and the parameters that only it reads from the module."""
        terms = layer.terms
        if not terms:
            call = self._call_of(layer)
            if any(self.map.alike.get(turn, turn) is not call for turn in call.turns):
                raise LiftError("it runs in a loop, several times in one forward pass")
            terms = (NormTerm(_free(call), 0),)
        path = layer.path.partition(":")[0]
        rewriter = self._rewriter(path)
        # Norms at one place are removed together.
        terms = tuple(term for term in terms if term.place not in rewriter.replacements)
        rewriter.replace({term.place: (_factor(rewriter, term), TakeArguments(_operand, term)) for term in terms})
        own = {("layer", layer.path), ("code", path)}
        for parameter in {*layer.parameters}:
            if self._readers[parameter] <= own:
                owner, _, last = parameter.rpartition(".")
                delattr(self.model.get_submodule(owner), last)

    def _call_of(self, layer: Layer) -> Call:
        """Return the call in forward code that makes a layer, which is a function."""
        path, _, name = layer.path.partition(":")
        if layer.made_by is not None:
            return layer.made_by
        where = f"in the forward code of {path or 'the network'}"
        if path in self.map.repeated or layer.call:
            raise LiftError(
                f"the runs of {path} at several places share its forward code; only= converts other modules"
            )
        raise LiftError(f"no call of {name} and no separate formula for it was found {where}")

    def _separated(self, path: str) -> dict[Call, str]:
        """Give each run of a module its own copy, and return their paths; the module must have no parameters."""
        module = self.model.get_submodule(path)
        if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
            raise LiftError(
                "this module runs at several places, which share its parameters; only= converts other parts"
            )
        # The calls of the module in order, by the calling module and its run.
        callers: dict[str, dict[int, list[Call]]] = defaultdict(lambda: defaultdict(list))
        for call in self.flow.calls:
            if call.function is None and call.name == path:
                callers[call.module][call.run].append(call)
        paths: dict[Call, str] = {}
        for caller, calls in callers.items():
            copies = self._copied(module, caller, next(iter(calls.values())))
            for own in calls.values():
                paths.update(zip(own, copies, strict=True))
        return paths

    def _copied(self, module: nn.Module, caller: str, calls: list[Call]) -> list[str]:
        """Copy a module for each of the calls that its caller makes in one run, and return the copies' paths."""
        parent = self.model.get_submodule(caller)
        own = [name for name, child in parent._modules.items() if child is module]
        if type(parent) is nn.Sequential or len(own) == len(calls) == 1:
            for name in own:
                setattr(parent, name, copied(module))
            return [_join(caller, name) for name in own]
        keys, turns = self._runs_of(calls[0].name), count(1)
        stem = calls[0].name.rpartition(".")[2]
        names = self._children(caller, calls, lambda _: (f"{stem}_{next(turns)}", copied(module)), keys)
        self._rewriter(caller).replace(
            {place: ([names[call] for call in own], _all_arguments) for place, own in _by_place(calls).items()}
        )
        return [_join(caller, name) for name in names.values()]

    def _rewriter(self, path: str) -> Rewriter:
        module = self.model.get_submodule(path)
        return self._rewriters.setdefault(module, Rewriter(module))


def _run_around(call: Call | None, path: str) -> Call | None:
    """Return the call around `call` that runs the module at a path, or None."""
    while call is not None and (call.function is not None or call.name != path):
        call = call.around
    return call


def _free(call: Call) -> Place:
    """Return the place of a call; raise LiftError if the code there cannot be replaced."""
    if call.place is None or call.obstacle:
        raise LiftError(call.obstacle)
    return call.place


def _by_place(calls: Iterable[Call]) -> dict[Place, list[Call]]:
    """Return the places of calls, each with all calls at that place in order."""
    return {_free(call): call.turns for call in calls}


def _terms(branch: int, node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    """Return skip path and branch of `a + b` or `torch.lerp(a, b, weight)`; a is still computed first."""
    if isinstance(node, ast.Call):
        terms = list(node.args)
        if isinstance(node.func, ast.Attribute) and node.func.attr.rstrip("_") == "lerp":
            own = [node.func.value] if len(terms) + len(node.keywords) == 2 else []
            from_start = ast.keyword("from_start", ast.Constant(branch == 1))
            parts = ast.Call(ast.Name("normless_interpolated", ast.Load()), own + terms, [*node.keywords, from_start])
            return [ast.Starred(parts, ast.Load())], []
        if len(terms) == 1 and isinstance(node.func, ast.Attribute):
            terms = [node.func.value, *terms]
        if len(terms) != 2 or node.keywords:
            raise LiftError(f"`{ast.unparse(node)}` is not a plain addition of two tensors")
    else:
        terms = [node.left, node.right]
    if branch == 0 and isinstance(terms[1], ast.Name):
        terms = terms[::-1]
    elif branch == 0:
        reverse = ast.Call(ast.Name("reversed", ast.Load()), [ast.Tuple(terms, ast.Load())], [])
        terms = [ast.Starred(reverse, ast.Load())]
    return terms, []


def _factor(rewriter: Rewriter, term: NormTerm) -> list[str]:
    """Add a child that multiplies by a term's factor unless that is 1; return its name in a list."""
    function = Function(torch.mul, (term.factor,))
    return [] if isclose(term.factor, 1, rel_tol=1e-3) else [rewriter.add_child("unit_length", function)]


def _operand(term: NormTerm, node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    """Return the operand that replaces the result of an operator, a tensor's method or a function."""
    if isinstance(node, ast.BinOp):
        return [(node.left, node.right)[term.operand]], []
    if not isinstance(node, ast.Call):
        raise LiftError(f"`{ast.unparse(node)}` is not a call")
    node.keywords.sort(key=lambda keyword: keyword.arg != "input")
    own = [node.func.value] if term.place.is_method and isinstance(node.func, ast.Attribute) else []
    return [[*own, *node.args, *(keyword.value for keyword in node.keywords)][term.operand]], []


def _all_arguments(node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    return node.args, node.keywords


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
