"""The places of an edit that are operators in forward code, made into modules where an edit needs them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn

from normless.arguments import on_device_of
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
    _rewriters: dict[str, Rewriter] = field(default_factory=dict)
    _calls: dict[str, list[list[Event]]] | None = None

    def sums_of(self, block: ResidualBlock) -> tuple[str, ...]:
        """Paths of the `ResidualSum`s that now add a block's branches, one for each, in the order of `sites`."""
        if not block.sites:
            raise LiftError("its residual sum is no addition of two tensors in forward code")
        for site in block.sites:
            if site not in self.sums:
                self._lift_sums(site.module)
        return tuple(self.sums[site] for site in block.sites)

    def _lift_sums(self, path: str) -> None:
        """Replace every addition `a + b` of a module that is a residual sum by `self.residual_sum(a, b)`."""
        sites = {site for block in self.map.walk() for site in block.sites if site.module == path}
        additions = [event for event in self._events(path) if event.is_addition]
        for site in sites:
            if site.total != len(additions):
                raise LiftError(
                    f"the forward code of {path or 'the network'} makes {len(additions)} additions where its "
                    f"dataflow has {site.total}"
                )
        branch_of = {site.index: site.branch for site in sites}
        rewriter = self._rewriter(path)
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
        self.sums |= {site: _join(path, names[site.index]) for site in sites}

    def module_of(self, layer: Layer) -> str:
        """The path of a module that now is this layer and no other: of a function, or of one call of a module."""
        key = (layer.path, layer.call)
        if key not in self.moved:
            if ":" in layer.path:
                self._lift_function(layer)
            else:
                self._separate(layer)
        return self.moved[key]

    def _lift_function(self, layer: Layer) -> None:
        path, function, events, event = self._calls_of(layer)
        if any(one is Tensor for one in (*event.args[1:], *event.kwargs.values())):
            raise LiftError(f"{function} takes more than one tensor there")
        rewriter = self._rewriter(path)
        ((place, turns),) = _by_place(events, [event]).items()
        functions = [Function(events[turn].function, events[turn].args[1:], events[turn].kwargs) for turn in turns]
        names = [rewriter.add_child(function, one) for one in functions]
        rewriter.replace({place: (names, partial(_first_argument, event))})
        for turn, name in zip(turns, names, strict=True):
            numbered = f"{path}:{function}_{turn}" if turn else f"{path}:{function}"
            self.moved[numbered, layer.call] = _join(path, name)

    def drop(self, layer: Layer) -> None:
        """Take a function or a formula out of forward code, and the parameters it alone reads out of the module."""
        if layer.terms:
            rewriter = self._rewriter(layer.path.partition(":")[0])
            rewriter.replace({term.place: (_factor(rewriter, term), partial(_operand, term)) for term in layer.terms})
        else:
            path, _, events, event = self._calls_of(layer)
            ((place, turns),) = _by_place(events, [event]).items()
            if len(turns) > 1:
                raise LiftError("it runs in a loop, several times in one forward pass")
            self._rewriter(path).replace({place: ([], partial(_first_argument, event))})
        self.moved[layer.path, layer.call] = ""
        others = {name for one in self.map.layers() if one.path != layer.path for name in one.parameters}
        for parameter in set(layer.parameters) - others:
            owner, _, last = parameter.rpartition(".")
            delattr(self.model.get_submodule(owner), last)

    def _calls_of(self, layer: Layer) -> tuple[str, str, list[Event], Event]:
        """Where a layer that is a function is called: module path, function, all calls of it there, this call."""
        path, _, name = layer.path.partition(":")
        stem, _, number = name.rpartition("_")
        # The third call of relu is `relu_2`.
        function, index = (stem, int(number)) if number.isdigit() else (name, 0)
        events = [event for event in self._events(path) if event.name == function and not event.is_child]
        if index >= len(events):
            where = f"in the forward code of {path or 'the network'}"
            raise LiftError(f"no call of {function}, and no formula that does nothing else, was found {where}")
        return path, function, events, events[index]

    def _separate(self, layer: Layer) -> None:
        """Give every call of a module a copy; only where it holds nothing that the calls would share."""
        path, _, child = layer.path.rpartition(".")
        module = self.model.get_submodule(layer.path)
        if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
            raise LiftError("this one module runs at several places and they share its parameters")
        events = [event for event in self._events(path) if event.is_child and event.name == child]
        if len(events) != sum(one.path == layer.path for one in self.map.layers()):
            raise LiftError(f"its calls come from elsewhere than the forward code of {path or 'the network'}")
        parent = self.model.get_submodule(path)
        if type(parent) is nn.Sequential:
            names = [name for name, one in parent._modules.items() if one is module]
            for name in names[1:]:
                setattr(parent, name, deepcopy(module))
        else:
            rewriter = self._rewriter(path)
            names = [rewriter.add_child(f"{child}_{call + 1}", deepcopy(module)) for call in range(len(events))]
            places = _by_place(events, events).items()
            rewriter.replace({place: ([names[turn] for turn in turns], _all_arguments) for place, turns in places})
        self.moved |= {(layer.path, call): _join(path, name) for call, name in enumerate(names)}

    def _rewriter(self, path: str) -> Rewriter:
        module = self.model.get_submodule(path)
        known = self._rewriters.get(path)
        if known is None or known.module is not module:
            self._rewriters[path] = known = Rewriter(module)
        return known

    def _events(self, path: str) -> list[Event]:
        """What the forward code of a module does in one call."""
        if self._calls is None:
            self._calls = self._recorded()
        calls = self._calls.get(path, [])
        places = [[(event.name, event.place, event.is_addition) for event in call] for call in calls]
        if not calls or any(one != places[0] for one in places):
            raise LiftError(f"{path or 'the network'} runs {len(calls)} times in one forward pass, in several ways")
        return calls[0]

    def _recorded(self) -> dict[str, list[list[Event]]]:
        if not (self.inputs or self.kwargs):
            raise LiftError("no example inputs came, by which to read its forward code")
        inputs, kwargs = on_device_of(self.model, self.inputs, self.kwargs)
        failure: Exception | None = None
        # A batch of one is too few for batch norm in training.
        for training in (None, False):
            try:
                with running(self.model, training):
                    return recorded(self.model, inputs, kwargs)
            except Exception as error:
                failure = error
        raise LiftError(f"the network does not run with the edits made so far ({failure})") from failure


def _by_place(events: list[Event], wanted: Iterable[Event]) -> dict[Place, list[int]]:
    """The places of the wanted events, each with the indices of all events that happen there, in order."""
    places: dict[Place, list[int]] = {}
    for event in wanted:
        if event.place is None:
            raise LiftError("no method of its class does it")
        if event.through is not None:
            raise LiftError(f"the function {event.through} does it, which is no method of its class")
        here = [index for index, one in enumerate(events) if one.place == event.place]
        if len({events[index].activation for index in here}) > 1:
            raise LiftError(f"its {event.place.method.name} runs several times in one call")
        places[event.place] = here
    return places


def _terms(branch: int, node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    """Skip path and branch of `a + b`; a is computed first, as it was."""
    if isinstance(node, ast.Call):
        terms = list(node.args)
        if len(terms) == 1 and isinstance(node.func, ast.Attribute):
            terms = [node.func.value, *terms]
        if len(terms) != 2 or node.keywords:
            raise LiftError(f"`{ast.unparse(node)}` is no plain addition of two tensors")
    else:
        terms = [node.left, node.right]
    if branch == 0 and isinstance(terms[1], ast.Name):
        terms = terms[::-1]
    elif branch == 0:
        reverse = ast.Call(ast.Name("reversed", ast.Load()), [ast.Tuple(terms, ast.Load())], [])
        terms = [ast.Starred(reverse, ast.Load())]
    return terms, []


def _first_argument(event: Event, node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    """The tensor that a function or a tensor's method is applied to."""
    if not isinstance(node, ast.Call):
        raise LiftError(f"`{ast.unparse(node)}` is no call")
    if event.is_method and isinstance(node.func, ast.Attribute):
        return [node.func.value], []
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    return [node.args[0] if node.args else named["input"]], []


def _factor(rewriter: Rewriter, term: Term) -> list[str]:
    """A new child that multiplies by a term's factor; none where that is 1."""
    function = Function(torch.mul, (term.factor,))
    return [] if isclose(term.factor, 1, rel_tol=1e-3) else [rewriter.add_child("unit_length", function)]


def _operand(term: Term, node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    """What goes on of an operator, of a tensor's method or of a function, in the place of its result."""
    if isinstance(node, ast.BinOp):
        return [(node.left, node.right)[term.operand]], []
    own = [node.func.value] if term.place.is_method and isinstance(node.func, ast.Attribute) else []
    terms = [*own, *node.args, *(keyword.value for keyword in node.keywords)]
    if term.place.through is None:
        return [terms[term.operand]], []
    if len(terms) > 1:
        raise LiftError(f"the function {term.place.through} does it, with more arguments than what it normalizes")
    return terms, []


def _all_arguments(node: Any) -> tuple[list[ast.expr], list[ast.keyword]]:
    return node.args, node.keywords


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
