"""The places of an edit that are operators in forward code, made into modules where an edit needs them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from torch import nn
from torch.fx import Node

from normless.lifting import Function, Lifter, LiftError, captured_calls
from normless.nn import ResidualSum
from normless.residual import Layer, ResidualBlock, ResidualMap, Site


class Lifted:
    """Sums, activations and norms of one network that are operators in its forward code.

    All sums of a module are lifted together, since each changes where the others are found. Every method raises
    LiftError where the place cannot be made a module, with the reason and the module.
    """

    def __init__(
        self, model: nn.Module, found: ResidualMap, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.model = model
        self.map = found
        self.inputs = inputs
        self.kwargs = kwargs
        self.sums: dict[Site, str] = {}
        self.moved: dict[tuple[str, int], str] = {}

    def sums_of(self, block: ResidualBlock) -> tuple[str, ...]:
        """Paths of the `ResidualSum`s that now add a block's branches, one for each, in the order of `sites`."""
        if not block.sites:
            raise LiftError("its residual sum is no addition of two tensors in forward code")
        for site in block.sites:
            if site not in self.sums:
                self._lift_sums(site.module)
        return tuple(self.sums[site] for site in block.sites)

    def _lift_sums(self, path: str) -> None:
        sites = {site for block in self.map.walk() for site in block.sites if site.module == path}
        lifter = self._lifter(path)
        additions = lifter.additions()
        for site in sorted(sites, key=lambda one: one.index):
            if site.total != len(additions):
                raise LiftError(
                    f"the forward code of {path or 'the network'} has {len(additions)} additions where its dataflow "
                    f"has {site.total}"
                )
            node = additions[site.index]
            branch, skip = node.args[site.branch], node.args[1 - site.branch]
            assert isinstance(branch, Node)
            assert isinstance(skip, Node)
            name = lifter.replace(node, "residual_sum", ResidualSum(), (skip, branch))
            self.sums[site] = _join(path, name)
        lifter.finish()

    def module_of(self, layer: Layer) -> str:
        """The path of a module that now is this layer and no other: of a function, or of one call of a module."""
        key = (layer.path, layer.call)
        if key not in self.moved:
            self.moved[key] = self._function(layer) if ":" in layer.path else self._one_call(layer)
        return self.moved[key]

    def _function(self, layer: Layer) -> str:
        path, function, lifter, node = self._call_of(layer)
        first, *rest = node.args
        if not isinstance(first, Node) or any(isinstance(one, Node) for one in (*rest, *node.kwargs.values())):
            raise LiftError(f"{function} takes more than one tensor there")
        module = Function(node.target, tuple(rest), dict(node.kwargs))
        name = lifter.replace(node, function, module, (first,))
        lifter.finish()
        return _join(path, name)

    def drop(self, layer: Layer) -> None:
        """Take a function out of forward code, and the parameters it alone reads out of the module."""
        _, _, lifter, node = self._call_of(layer)
        lifter.bypass(node)
        lifter.finish()
        self.moved[layer.path, layer.call] = ""
        others = {name for one in self.map.layers() if one.path != layer.path for name in one.parameters}
        for parameter in set(layer.parameters) - others:
            owner, _, last = parameter.rpartition(".")
            delattr(self.model.get_submodule(owner), last)

    def _call_of(self, layer: Layer) -> tuple[str, str, Lifter, Node]:
        """Where a layer that is a function is called: module path, function, the module's code and the node in it."""
        path, _, name = layer.path.partition(":")
        function, index = _numbered(name)
        # Earlier calls of the function that were lifted or dropped are no longer in the code.
        done = [_numbered(name) for home, _, name in (key.partition(":") for key, _ in self.moved) if home == path]
        at = index - sum(known == function and before < index for known, before in done)
        lifter = self._lifter(path)
        found = lifter.functions(function)
        if not 0 <= at < len(found):
            raise LiftError(f"no call of {function} was found in the forward code of {path or 'the network'}")
        return path, function, lifter, found[at]

    def _one_call(self, layer: Layer) -> str:
        """A copy of a module for one of its calls; only where it holds nothing that the calls would share."""
        path, _, child = layer.path.rpartition(".")
        module = self.model.get_submodule(layer.path)
        if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
            raise LiftError("this one module runs at several places and they share its parameters")
        lifter = self._lifter(path)
        calls = lifter.calls_of(child)
        total = sum(one.path == layer.path for one in self.map.layers())
        done = sum(key[0] == layer.path for key in self.moved)
        if len(calls) + done != total:
            raise LiftError(f"its calls come from elsewhere than the forward code of {path or 'the network'}")
        earlier = sum(key[0] == layer.path and key[1] < layer.call for key in self.moved)
        node = calls[layer.call - earlier]
        (first,) = node.args
        assert isinstance(first, Node)
        name = lifter.replace(node, f"{child}_{layer.call + 1}", deepcopy(module), (first,))
        lifter.finish()
        return _join(path, name)

    def _lifter(self, path: str) -> Lifter:
        if not (self.inputs or self.kwargs):
            raise LiftError("no example inputs came, by which to read its forward code")
        try:
            calls = captured_calls(self.model, self.inputs, self.kwargs, [path])[path]
        except Exception as error:
            raise LiftError(f"the network does not run with the edits made so far ({error})") from error
        if len(calls) != 1:
            raise LiftError(f"{path or 'the network'} runs {len(calls)} times in one forward pass")
        return Lifter(self.model.get_submodule(path), calls[0])


def _numbered(name: str) -> tuple[str, int]:
    """`relu_2` as the function and which of its calls it is, ("relu", 2); `relu` is ("relu", 0)."""
    stem, _, number = name.rpartition("_")
    return (stem, int(number)) if number.isdigit() else (name, 0)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
