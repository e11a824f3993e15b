"""Which operations of a dataflow are weight layers, norms, activations, layer scales and dropout, of which module."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import nn

from normless.nn import ShiftedActivation
from normless.residual.blocks import Kind, Layer
from normless.residual.classify import describe, kind_of
from normless.residual.graph import Dataflow, Operation
from normless.residual.names import Names
from normless.residual.norms import computed_kind, gamma_of, inline_norm
from normless.residual.operations import ACTIVATION, NORM, WEIGHT, is_dropout


@dataclass(frozen=True)
class LayerCall:
    """One run of one layer in a forward pass."""

    path: str
    call: int = 0


@dataclass
class Layers:
    """The layers of a dataflow, the operations of each, and by its index the layer that an operation belongs to.

    A layer may be several operations: a ghost batch norm is slices, norms and a concatenation.
    """

    owner: dict[int, LayerCall] = field(default_factory=dict)
    operations: dict[LayerCall, list[int]] = field(default_factory=dict)
    layers: dict[LayerCall, Layer] = field(default_factory=dict)

    def kind(self, index: int) -> Kind | None:
        """The kind of the layer that an operation belongs to, None where it belongs to none."""
        call = self.owner.get(index)
        return None if call is None else self.layers[call].kind

    def inputs(self, index: int, flow: Dataflow) -> set[int]:
        """What an operation reads; of one that is part of a layer, what that layer reads, a norm being several."""
        call = self.owner.get(index)
        if call is None:
            return set(flow[index].parents)
        parents = {parent for part in self.operations[call] for parent in flow[part].parents}
        return {parent for parent in parents if self.owner.get(parent) != call}

    def along(self, path: list[int]) -> tuple[LayerCall, ...]:
        """The layers that the operations of a path belong to, in execution order."""
        return tuple(dict.fromkeys(self.owner[index] for index in path if index in self.owner))


def find_layers(model: nn.Module, flow: Dataflow) -> Layers:
    """Find the layers of a network in its dataflow."""
    return _Finder(model, flow).find()


class _Finder:
    def __init__(self, model: nn.Module, flow: Dataflow) -> None:
        self.flow = flow
        self.names = Names(model)
        self.modules = self.names.modules
        self.kinds: dict[str, Kind | None] = {path: kind_of(module) for path, module in self.modules.items()}
        self.enclosing: dict[tuple[str, ...], str | None] = {}
        self.taken: Counter[tuple[str, str, int]] = Counter()
        self.runs: dict[str, dict[Hashable, int]] = defaultdict(dict)
        self.call_kinds: dict[LayerCall, Kind] = {}
        self.result = Layers()
        self._classify_by_operations()

    def _classify_by_operations(self) -> None:
        """Give a kind to the modules that are a norm, an activation or a scale by what they compute."""
        own: dict[str, list[int]] = defaultdict(list)
        children: dict[str, set[str]] = defaultdict(set)
        for index, operation in enumerate(self.flow.operations):
            own[operation.module].append(index)
            for path in operation.modules[:-1]:
                children[path].add(operation.module)
        for path, indices in own.items():
            if not path or self.kinds[path] is not None:
                continue
            kind = computed_kind([self.flow[index] for index in indices])
            # A norm may contain an activation or a dropout, which stays a layer by itself.
            alone = all(self.kinds[child] in ("activation", "dropout") for child in children[path])
            if path not in children or not children[path] or (kind == "norm" and alone):
                self.kinds[path] = kind

    def find(self) -> Layers:
        inline = {part for index in range(len(self.flow)) for part in self._inline_norm(index)}
        for index in range(len(self.flow)):
            if index not in inline:
                layer = self._layer_of(index)
                if layer is not None:
                    self._give(index, *layer)
        for call, indices in self.result.operations.items():
            indices.sort()
            self.result.layers[call] = self._layer(call, indices)
        order = sorted(self.result.layers, key=lambda call: self.result.operations[call][0])
        self.result.layers = {call: self.result.layers[call] for call in order}
        return self.result

    def _give(self, index: int, path: str, kind: Kind) -> None:
        """Make an operation part of the layer at `path`, in the run of it that the operation belongs to."""
        runs = self.runs[path]
        call = LayerCall(path, runs.setdefault(self._run_of(index, path), len(runs)))
        self.call_kinds.setdefault(call, kind)
        self.result.owner[index] = call
        self.result.operations.setdefault(call, []).append(index)

    def _run_of(self, index: int, path: str) -> Hashable:
        """A key per run of a layer: the name by which its module was called, and the number of the call.

        Export counts the calls of each name; a module of several names runs under each of them. A parameter that
        forward code uses directly is a layer anew at each use.
        """
        operation = self.flow[index]
        if ":" in path:
            return index if self.flow[index].parameters and operation.name not in NORM else operation.call
        aliases = [name for name in operation.modules if self.names.canonical(name) == path]
        return (aliases[-1] if aliases else operation.module), operation.call

    def _inline_norm(self, index: int) -> list[int]:
        operation = self.flow[index]
        if self._enclosing(operation.modules) is not None:
            return []
        parts = inline_norm(self.flow, index)
        if parts:
            path = self._functional(index, operation.parameters[0].rpartition(".")[2])
            runs = self.runs[path]
            call = LayerCall(path, runs.setdefault(index, len(runs)))
            self.call_kinds[call] = "norm"
            self.result.owner.update(dict.fromkeys(parts, call))
            self.result.operations[call] = parts
        return parts

    def _layer_of(self, index: int) -> tuple[str, Kind] | None:
        operation = self.flow[index]
        name = operation.name
        if name in WEIGHT and operation.parameters:
            return self._weight_owner(operation), "weight"
        if is_dropout(operation):
            return self._functional(index, name), "dropout"
        path = self._enclosing(operation.modules)
        if path is not None:
            kind = self.kinds[path]
            assert kind is not None
            return self.names.canonical(path), kind
        if name in NORM:
            return self._functional(index, name), "norm"
        if name in ACTIVATION:
            return self._functional(index, name), "activation"
        if name in {"mul", "addcmul"} and len(operation.parents) == 1 and operation.parameters and operation.floating:
            return self._scale(operation), "scale"
        return None

    def _enclosing(self, stack: tuple[str, ...]) -> str | None:
        """The innermost module around an operation that is a layer; a shifted activation counts as a whole."""
        if stack not in self.enclosing:
            paths = [path for path in reversed(stack) if self.kinds.get(path) is not None]
            shifted = [path for path in paths[1:2] if isinstance(self.modules[path], ShiftedActivation)]
            self.enclosing[stack] = next(iter(shifted or paths), None)
        return self.enclosing[stack]

    def _functional(self, index: int, name: str) -> str:
        """The module that does nothing but this, else its place in the forward code of one, `PATH:NAME`."""
        operation = self.flow[index]
        path = self.names.canonical(operation.module)
        if path and not list(self.modules[path].children()) and not _holds_parameters(self.modules[path]):
            return path
        key = (path, name, operation.call)
        self.taken[key] += 1
        return f"{path}:{name}" if self.taken[key] == 1 else f"{path}:{name}_{self.taken[key] - 1}"

    def _weight_owner(self, operation: Operation) -> str:
        """The module that runs and owns the weight, else the one that owns it; for a parameter alone, its name."""
        if self.kinds[operation.module] == "weight":
            return self.names.canonical(operation.module)
        weight = self.names.weight_of(operation.parameters)
        path, _, name = weight.rpartition(".")
        if ".parametrizations." in f".{path}.":
            return f".{path}".partition(".parametrizations.")[0].removeprefix(".")
        module = self.modules[path]
        if self.kinds[path] == "weight" or "weight" in name or isinstance(module, nn.MultiheadAttention):
            return path
        return f"{path}:{name}"

    def _scale(self, operation: Operation) -> str:
        path, _, name = self.names.parameter(operation.parameters[0]).rpartition(".")
        module = self.modules[path]
        alone = self.names.canonical(operation.module) == path and path and not list(module.children())
        return path if alone and not _holds_parameters(module, besides=name) else f"{path}:{name}"

    def _layer(self, call: LayerCall, indices: list[int]) -> Layer:
        kind = self.call_kinds[call]
        operations = [self.flow[index] for index in indices]
        parameters = dict.fromkeys(
            self.names.parameter(name) for operation in operations for name in operation.parameters
        )
        gamma = gamma_of(operations) if kind in ("norm", "scale") else None
        if kind == "weight":
            gamma = self.names.gain_of(operations[0].arguments)
        path, _, within = call.path.partition(":")
        return Layer(
            call.path,
            kind,
            input=self._input_of(indices),
            call=call.call,
            gamma=None if gamma is None else self.names.parameter(gamma),
            parameters=tuple(parameters),
            description=within or describe(self.modules[path]),
            in_place=any(operation.in_place for operation in operations),
            called=any(self.names.canonical(name) == path for name in operations[0].modules),
        )

    def _input_of(self, indices: list[int]) -> str | None:
        """The path of the layer whose output is this one's only input, or None."""
        sources = self.result.inputs(indices[0], self.flow)
        source = self.result.owner.get(sources.pop()) if len(sources) == 1 else None
        return None if source is None else source.path


def _holds_parameters(module: nn.Module, besides: str = "") -> bool:
    """Whether the module itself holds parameters, other than the one of this name."""
    return any(name != besides for name, _ in module.named_parameters(recurse=False))
