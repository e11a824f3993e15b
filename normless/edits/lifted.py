"""The places of an edit that are operators in forward code, made into modules where an edit needs them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn

from normless._internal.arguments import on_device_of
from normless._internal.copying import copied
from normless.lifting import Arguments, Event, LiftError, Place, Rewriter, recorded, running
from normless.nn import ResidualSum
from normless.nn.function import Function
from normless.residual import Layer, ResidualBlock, ResidualMap, Site
from normless.residual.blocks import Term


@dataclass
class Lifted:
    """Sums, activations and norms of one network that are operators in its forward code.

    All sums of a module are lifted together. Every method raises LiftError where the place cannot be made a module,
    with the reason and the module.
    """

    model: nn.Module
    map: ResidualMap
    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    sums: dict[Site, str] = field(default_factory=dict)
    moved: dict[tuple[str, int], str] = field(default_factory=dict)
    _rewriters: dict[nn.Module, Rewriter] = field(default_factory=dict)
    _calls: dict[str, list[list[Event]]] | None = None

    def sums_of(self, block: ResidualBlock) -> tuple[str, ...]:
        """Paths of the `ResidualSum`s that now add a block's branches, one for each, in the order of `sites`."""
        if not block.sites:
            raise LiftError("its residual sum is not an addition of two tensors in forward code")
        for site in block.sites:
            if site not in self.sums:
                self._lift_sums(site.module)
        return tuple(self.sums[site] for site in block.sites)

    def _lift_sums(self, path: str) -> None:
        """Replace every addition `a + b` of a module that is a residual sum by `self.residual_sum(a, b)`.

        A module whose runs add for several blocks becomes one module for each.
        """
        sites = {site for block in self.map.walk() for site in block.sites if site.module == path}
        copies = self._separated(path) if any(site.call for site in sites) else [path]
        for call, copy in enumerate(copies):
            self._lift_run(path, copy, {site for site in sites if site.call == call})

    def _lift_run(self, path: str, copy: str, sites: set[Site]) -> None:
        """The same for the module at `copy`, of the code of the one at `path`."""
        additions = [event for event in self._events(path) if event.is_addition]
        for site in sites:
            if site.total != len(additions):
                made = f"the forward code of {path or 'the network'} makes {len(additions)} additions"
                raise LiftError(f"{made} where its dataflow has {site.total}")
        branch_of = {site.index: site.branch for site in sites}
        rewriter = self._rewriter(copy)
        places = _by_place(additions, [additions[index] for index in sorted(branch_of)])
        lifted = sorted(index for turns in places.values() for index in turns)
        names = {index: rewriter.add_child("residual_sum", ResidualSum()) for index in lifted}
        replacements: dict[Place, tuple[list[str], Arguments]] = {}
        for place, turns in places.items():
            branches = {branch_of[index] for index in turns if index in branch_of}
            if len(branches) > 1:
                raise LiftError(f"line {place.position[0]} of its code adds the branch now as first, now as second")
            replacements[place] = [names[index] for index in turns], partial(_terms, branches.pop())
        rewriter.replace(replacements)
        self.sums |= {site: _join(copy, names[site.index]) for site in sites}

    def module_of(self, layer: Layer) -> str:
        """The path of a module that now is this layer and no other: of a function, or of one call of a module."""
        key = (layer.path, layer.call)
        if key not in self.moved:
            if ":" in layer.path:
                self._lift_function(layer)
            else:
                self.moved |= {(layer.path, call): path for call, path in enumerate(self._separated(layer.path))}
        return self.moved[key]

    def calls(self, path: str, place: Place, children: list[nn.Module], arguments: Arguments) -> list[str]:
        """The paths of the children that stand for an expression of a module's forward code, one for each run of it.

        Where it is such children already they stay; else the given ones take its place.
        """
        rewriter = self._rewriter(path)
        if place not in rewriter.replacements:
            names = [rewriter.add_child("attention_logits", child) for child in children]
            rewriter.replace({place: (names, arguments)})
        return [_join(path, name) for name in rewriter.replacements[place][0]]

    def _lift_function(self, layer: Layer) -> None:
        events, term = self._calls_of(layer)
        path, function = layer.path.partition(":")[0], next(iter(events.values())).name
        if any(one is Tensor for event in events.values() for one in (*event.args[1:], *event.kwargs.values())):
            raise LiftError(f"{function} takes more than one tensor there")
        rewriter = self._rewriter(path)
        functions = [Function(event.function, event.args[1:], event.kwargs) for event in events.values()]
        names = [rewriter.add_child(function, one) for one in functions]
        rewriter.replace({term.place: (names, partial(_operand, term))})
        for turn, name in zip(events, names, strict=True):
            numbered = f"{path}:{function}_{turn}" if turn else f"{path}:{function}"
            self.moved[numbered, layer.call] = _join(path, name)

    def drop(self, layer: Layer) -> None:
        """Take a function or a formula out of forward code, and the parameters it alone reads out of the module."""
        terms = layer.terms
        if not terms:
            events, term = self._calls_of(layer)
            if len(events) > 1:
                raise LiftError("it runs in a loop, several times in one forward pass")
            terms = (term,)
        path = layer.path.partition(":")[0]
        rewriter = self._rewriter(path)
        # Norms of one place are removed together.
        terms = tuple(term for term in terms if term.place not in rewriter.replacements)
        rewriter.replace({term.place: (_factor(rewriter, term), partial(_operand, term)) for term in terms})
        self.moved[layer.path, layer.call] = ""
        others = {name for one in self.map.layers() if one.path != layer.path for name in one.parameters}
        operations = self.map.flow.operations if self.map.flow else ()
        # Also what lies outside the part of a network that is converted.
        others |= {name for one in operations if one.module != path for name in one.parameters}
        for parameter in set(layer.parameters) - others:
            owner, _, last = parameter.rpartition(".")
            delattr(self.model.get_submodule(owner), last)

    def _calls_of(self, layer: Layer) -> tuple[dict[int, Event], Term]:
        """The calls at the place where a layer that is a function is called, by number, and what goes on without."""
        path, _, name = layer.path.partition(":")
        stem, _, number = name.rpartition("_")
        # The third call of relu is `relu_2`.
        function, index = (stem, int(number)) if number.isdigit() else (name, 0)
        events = [event for event in self._events(path) if event.name == function and event.run is None]
        if index >= len(events):
            where = f"in the forward code of {path or 'the network'}"
            if path in self.map.repeated or layer.call:
                raise LiftError(f"{path} runs at several places, which share its forward code; only= converts others")
            raise LiftError(f"no call of {function}, and no formula that does nothing else, was found {where}")
        ((place, turns),) = _by_place(events, events[index : index + 1]).items()
        return {turn: events[turn] for turn in turns}, Term(place, 0)

    def _separated(self, path: str) -> list[str]:
        """Give every run of a module a copy, and return their paths; only where it holds nothing that they share."""
        module = self.model.get_submodule(path)
        if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
            raise LiftError(
                "this one module runs at several places, which share its parameters; only= converts other parts"
            )
        # One that ran on constants alone is not in the dataflow, which numbers the runs.
        self._events(path)
        callers: dict[int, tuple[str, int]] = {}
        for caller, calls in self._recorded().items():
            for call in calls:
                runs = [event.run for event in call if event.run is not None and event.name == path]
                callers |= {run: (caller, number) for number, run in enumerate(runs)}
        copies = {caller: self._copied(module, path, caller) for caller in dict(callers.values())}
        return [copies[caller][number] for _, (caller, number) in sorted(callers.items())]

    def _copied(self, module: nn.Module, path: str, caller: str) -> list[str]:
        """The paths of copies of a module, one for each time that another calls it in one run."""
        parent = self.model.get_submodule(caller)
        events = [event for event in self._events(caller) if event.run is not None and event.name == path]
        own = [name for name, one in parent._modules.items() if one is module]
        if type(parent) is nn.Sequential or len(own) == len(events) == 1:
            for name in own:
                setattr(parent, name, copied(module))
            return [_join(caller, name) for name in own]
        rewriter = self._rewriter(caller)
        stem = path.rpartition(".")[2]
        names = [rewriter.add_child(f"{stem}_{call + 1}", copied(module)) for call in range(len(events))]
        places = _by_place(events, events).items()
        rewriter.replace({place: ([names[turn] for turn in turns], _all_arguments) for place, turns in places})
        return [_join(caller, name) for name in names]

    def _rewriter(self, path: str) -> Rewriter:
        module = self.model.get_submodule(path)
        return self._rewriters.setdefault(module, Rewriter(module))

    def _events(self, path: str) -> list[Event]:
        """What the forward code of a module does in one call."""
        calls = self._recorded().get(path, [])
        places = [[(event.name, event.place, event.is_addition) for event in call] for call in calls]
        if not calls or any(one != places[0] for one in places):
            raise LiftError(f"{path or 'the network'} runs {len(calls)} times in one forward pass, in several ways")
        return calls[0]

    def _recorded(self) -> dict[str, list[list[Event]]]:
        if self._calls is not None:
            return self._calls
        if not (self.inputs or self.kwargs):
            raise LiftError("no example inputs came, by which to read its forward code")
        inputs, kwargs = on_device_of(self.model, self.inputs, self.kwargs)
        failure: Exception | None = None
        # A batch of one is too few for batch norm in training.
        for training in (None, False):
            try:
                with running(self.model, training):
                    self._calls = recorded(self.model, inputs, kwargs)
                    return self._calls
            except Exception as error:
                failure = error
        raise LiftError(f"the network does not run with the edits made so far ({failure})") from failure


def _by_place(events: list[Event], wanted: Iterable[Event]) -> dict[Place, list[int]]:
    """The places of the wanted events, each with the indices of all events that happen there, in order."""
    places: dict[Place, list[int]] = {}
    for event in wanted:
        if event.place is None:
            raise LiftError(event.obstacle)
        places[event.place] = [index for index, one in enumerate(events) if one.place == event.place]
    return places


def _terms(branch: int, node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    """Skip path and branch of `a + b` or `torch.lerp(a, b, weight)`; a is computed first, as it was."""
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


def _factor(rewriter: Rewriter, term: Term) -> list[str]:
    """A new child that multiplies by a term's factor; none where that is 1."""
    function = Function(torch.mul, (term.factor,))
    return [] if isclose(term.factor, 1, rel_tol=1e-3) else [rewriter.add_child("unit_length", function)]


def _operand(term: Term, node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    """What goes on of an operator, of a tensor's method or of a function, in the place of its result."""
    if isinstance(node, ast.BinOp):
        return [(node.left, node.right)[term.operand]], []
    if not isinstance(node, ast.Call):
        raise LiftError(f"`{ast.unparse(node)}` is no call")
    node.keywords.sort(key=lambda keyword: keyword.arg != "input")
    own = [node.func.value] if term.place.is_method and isinstance(node.func, ast.Attribute) else []
    return [[*own, *node.args, *(keyword.value for keyword in node.keywords)][term.operand]], []


def _all_arguments(node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    return node.args, node.keywords


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
