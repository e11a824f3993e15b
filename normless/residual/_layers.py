"""Find the layers of a dataflow: weight layers, norms, activations, layer scales and dropout, with their modules."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from math import prod

from torch import nn

from normless.nn._activation import ShiftedActivation
from normless.residual._blocks import Layer, LayerKind
from normless.residual._classify import computed_kind, kind_of
from normless.residual._description import described, layer_of
from normless.residual._formulas import Formula, terms_of, written_norm
from normless.residual._graph import Dataflow, Operation
from normless.residual._names import Names
from normless.residual._operations import ACTIVATION, COPYING, LAYOUT, NORM, ROOT, WEIGHT
from normless.residual._outputs import reason_to_keep
from normless.residual._sub_batches import sub_batch_norms


@dataclass(eq=False)
class LayerRun:
    """One run of a layer in a forward pass, with its operations in execution order."""

    layer: Layer
    operations: list[int] = field(default_factory=list)


class Layers:
    """The layers of a network in its dataflow: their `runs` in execution order, and the `owner` of each operation."""

    def __init__(self, model: nn.Module, flow: Dataflow) -> None:
        self.flow = flow
        self.names = Names(model)
        self.runs: list[LayerRun] = []
        self.owner: dict[int, LayerRun] = {}
        self._no_layers: set[int] = set()
        self._bending: set[int] = set()
        self._formulas: dict[int, Formula] = {}
        self._lengths: list[tuple[Operation, Formula]] = []
        self._modules = self.names.modules
        kinds = ((path, kind_of(module)) for path, module in self._modules.items())
        self._kinds: dict[str, LayerKind] = {path: kind for path, kind in kinds if kind is not None}
        self._join_sub_batches()
        self._taken: Counter[tuple[int, str]] = Counter()
        self._runs_of: dict[str, dict[Hashable, LayerRun]] = defaultdict(dict)
        self._classify_by_operations()
        self._find_activations_of_norms()
        for index, operation in enumerate(flow.operations):
            self._find_written_norm(index, operation)
        for index, terms in terms_of(flow, self._formulas).items():
            self.owner[index].layer = replace(self.owner[index].layer, terms=terms)
        for index, operation in enumerate(flow.operations):
            is_open = index not in self.owner and index not in self._no_layers
            if is_open and (layer := self._layer_of(index, operation)) is not None:
                self._give(index, *layer, self._run_key(index, operation, layer[0]))
        for run in self.runs:
            run.operations.sort()
            run.layer = self._described(run)
        self._find_directions()
        self.runs.sort(key=lambda run: run.operations[0])

    def kind(self, index: int) -> LayerKind | None:
        """Return the kind of the layer to which an operation belongs, or None."""
        run = self.owner.get(index)
        return None if run is None else run.layer.kind

    def has_weight(self, path: Iterable[int]) -> bool:
        """Whether an operation of a path belongs to a weight layer."""
        return any(self.kind(index) == "weight" for index in path)

    def taps(self, path: Iterable[int]) -> int:
        """Return the product of the kernel sizes of the convolutions on a path."""
        weights = {run.layer.parameters: run for run in self.along([*path]) if run.layer.kind == "weight"}
        shapes = (
            self.names.parameters[self.names.weight_of(parameters)].shape for parameters in weights if parameters
        )
        return prod(prod(shape[2:]) for shape in shapes)

    def inputs(self, index: int) -> set[int]:
        """Return the inputs of an operation, or of its layer's run, since a norm may be several operations."""
        run = self.owner.get(index)
        parts = [index] if run is None else run.operations
        parents = {parent for part in parts for parent in self.flow[part].parents}
        return {parent for parent in parents if run is None or self.owner.get(parent) is not run}

    def along(self, path: list[int]) -> tuple[LayerRun, ...]:
        """Return the layers to which the operations of a path belong, in the order of the path."""
        return tuple(dict.fromkeys(self.owner[index] for index in path if index in self.owner))

    def _join_sub_batches(self) -> None:
        """Treat each sub-batch norm as one norm, whichever of its inner norms run."""
        self._holders = sub_batch_norms(self._modules, [path for path, kind in self._kinds.items() if kind == "norm"])
        inside = tuple(f"{holder}." for holder in self._holders)
        self._parts = {path for path in self._modules if path.startswith(inside)}
        self._kinds |= dict.fromkeys(self._holders, "norm")
        self._kinds = {path: kind for path, kind in self._kinds.items() if path not in self._parts}

    def _classify_by_operations(self) -> None:
        """Classify modules as norms, activations or scales by the operations that they run."""
        own: dict[str, list[Operation]] = defaultdict(list)
        children: dict[str, set[str]] = defaultdict(set)
        for operation in self.flow.operations:
            own[operation.module].append(operation)
            for path in operation.modules[:-1]:
                children[path].add(operation.module)
        for path, operations in own.items():
            kind = computed_kind(operations) if path and path not in self._kinds and path not in self._parts else None
            inner = {self._kinds.get(child) for child in children[path]}
            # A norm may contain an activation or dropout, which remains a layer of its own.
            if kind is not None and (not inner or (kind == "norm" and inner <= {"activation", "dropout"})):
                self._kinds[path] = kind

    def _find_activations_of_norms(self) -> None:
        """Find the activations that a norm's module applies as functions after the normalization."""
        for at, operation in enumerate(self.flow.operations):
            path = self._enclosing(operation.modules)
            if path is None or self._kinds[path] != "norm":
                continue
            readers = [self.flow[reader].modules for reader in self.flow.consumers[at]]
            if readers and all(path in modules for modules in readers):
                continue
            # From the module's result back to its normalization.
            index, passed = at, list[int]()
            while path in (step := self.flow[index]).modules and len(step.parents) == 1 and step.name not in NORM:
                bends = step.name in ACTIVATION and not step.parameters
                is_own = self._enclosing(step.modules) == path
                if is_own and not (bends or step.is_dropout):
                    if not (step.name in LAYOUT or step.is_factor or step.leaves_unchanged):
                        break
                    passed.append(index)
                else:
                    self._no_layers.update(passed)
                    self._bending |= {index} if is_own and bends else set()
                    passed = []
                (index,) = step.parents

    def _give(self, index: int, path: str, kind: LayerKind, key: Hashable) -> None:
        """Add an operation to the run of the layer at `path` with this key."""
        runs = self._runs_of[path]
        if key not in runs:
            runs[key] = LayerRun(Layer(path, kind, call=len(runs)))
            self.runs.append(runs[key])
        runs[key].operations.append(index)
        self.owner[index] = runs[key]

    def _find_written_norm(self, index: int, operation: Operation) -> None:
        formula = written_norm(self.flow, index) if self._enclosing(operation.modules) is None else None
        if formula is None or not self.owner.keys().isdisjoint(formula.operations):
            return
        if formula.is_norm:
            name = "norm" if formula.gain is None else formula.gain.rpartition(".")[2]
            path = self._place_in(operation, name)
            for part in formula.operations:
                self._give(part, path, "norm", index)
            self._formulas[index] = formula
        else:
            self._no_layers.update(formula.operations)
            self._lengths.append((operation, formula))

    def _find_directions(self) -> None:
        """Mark the normalizations outside the trunk as directions, including formulas x / |x|."""
        for run in self.runs:
            if run.layer.kind == "norm":
                gamma = run.layer.gamma
                has_vector = gamma is not None and self.names.parameters[gamma].numel() > 1
                reason = reason_to_keep(self.flow, self.kind, run.operations, has_vector)
                run.layer = replace(run.layer, kind="direction", reason=reason) if reason else run.layer
        for operation, formula in self._lengths:
            reason = reason_to_keep(self.flow, self.kind, formula.operations, has_vector=False)
            if reason and self.owner.keys().isdisjoint(formula.operations):
                path = self._place_in(operation, "direction")
                for part in formula.operations:
                    self._give(part, path, "direction", formula.quotient)
                run = self.owner[formula.quotient]
                run.layer = replace(self._described(run), reason=reason)

    def _run_key(self, index: int, operation: Operation, path: str) -> Hashable:
        """Return a key that is equal for all operations of one run of the layer at `path`."""
        if ":" not in path:
            around = zip(operation.modules, operation.runs, strict=True)
            own = [run for name, run in around if self.names.canonical(name) == path]
            return (own or operation.runs)[-1]
        # A parameter that forward code uses directly is a new layer at each use.
        is_use = operation.parameters and operation.name not in NORM
        return (index, None) if is_use else operation.runs[-1]

    def _layer_of(self, index: int, operation: Operation) -> tuple[str, LayerKind] | None:
        """Return the path and kind of the layer to which an operation belongs."""
        name = operation.name
        if name in WEIGHT and operation.parameters:
            return (
                (self._scale(operation), "scale")
                if self._mixes(operation)
                else (self._weight_owner(operation), "weight")
            )
        if operation.is_dropout:
            return self._functional(operation, name), "dropout"
        path = self._enclosing(operation.modules)
        if index in self._bending:
            return self._place_in(operation, name), "activation"
        if path is not None:
            return self.names.canonical(path), self._kinds[path]
        if name in NORM:
            return self._functional(operation, name), "norm"
        if name in ACTIVATION and not any(self.flow[parent].name in ROOT for parent in operation.parents):
            # After a root, a clamp keeps a divisor from zero.
            return self._functional(operation, name), "activation"
        if name in {"mul", "addcmul"} and len(operation.parents) == 1 and operation.parameters and operation.floating:
            return self._scale(operation), "scale"
        return None

    def _enclosing(self, stack: tuple[str, ...]) -> str | None:
        """Return the innermost layer among the modules around an operation; a shifted activation is one layer."""
        paths = [path for path in reversed(stack) if path in self._kinds]
        shifted = [path for path in paths[1:2] if isinstance(self._modules[path], ShiftedActivation)]
        return next(iter(shifted or paths), None)

    def _functional(self, operation: Operation, name: str) -> str:
        """Return the path of the operation's module if it is a leaf, else its place in forward code, `PATH:NAME`."""
        path = self.names.canonical(operation.module)
        if path and self._is_leaf(path):
            return path
        return self._place_in(operation, name)

    def _place_in(self, operation: Operation, name: str) -> str:
        # A module with several names runs under each of them, and is counted under each.
        path, key = self.names.canonical(operation.module), (operation.runs[-1], name)
        self._taken[key] += 1
        return f"{path}:{name}" if self._taken[key] == 1 else f"{path}:{name}_{self._taken[key] - 1}"

    def _mixes(self, operation: Operation) -> bool:
        """Whether a product with a learned tensor sums or makes copies of an activation (streams)."""
        name = self.names.weight_of(operation.parameters)
        factors, source = self.names.parameters[name], operation.parents[0]
        before, after = self.flow[source].shape, operation.shape
        if self._kinds.get(name.rpartition(".")[0]) is not None or before is None or after is None:
            return False
        if factors.numel() > 1 and prod(after) == prod(before) * factors.numel():
            return True
        return any(
            prod(shape) == prod(before) and prod(shape) == prod(read) * size
            for index in range(source + 1)
            if self.flow[index].name in COPYING
            and self.flow.depends(source, index)
            and len(self.flow[index].parents) == 1
            if (shape := self.flow[index].shape) and (read := self.flow[self.flow[index].parents[0]].shape)
            for size in factors.shape
            if size > 1
        )

    def _weight_owner(self, operation: Operation) -> str:
        """Return the path of the module that runs or owns the weight, or `PATH:NAME` for a parameter of no layer."""
        if self._kinds.get(operation.module) == "weight":
            return self.names.canonical(operation.module)
        path, _, name = self.names.weight_of(operation.parameters).rpartition(".")
        if ".parametrizations." in f".{path}.":
            return f".{path}".partition(".parametrizations.")[0].removeprefix(".")
        is_layer = self._kinds.get(path) == "weight" or isinstance(self._modules[path], nn.MultiheadAttention)
        return path if is_layer or "weight" in name else f"{path}:{name}"

    def _scale(self, operation: Operation) -> str:
        path, _, name = self.names.parameter(operation.parameters[0]).rpartition(".")
        alone = self.names.canonical(operation.module) == path and path
        return path if alone and self._is_leaf(path, besides=name) else f"{path}:{name}"

    def _is_leaf(self, path: str, besides: str = "") -> bool:
        """Whether a module has neither children nor parameters, except one of the name `besides`."""
        module = self._modules[path]
        own = (name for name, _ in module.named_parameters(recurse=False))
        return not list(module.children()) and all(name == besides for name in own)

    def _described(self, run: LayerRun) -> Layer:
        """Complete the layer of a run with the properties of its operations and the path of its input layer."""
        sources = self.inputs(run.operations[0])
        source = self.owner.get(sources.pop()) if len(sources) == 1 else None
        layer = described(run.layer, self.flow, run.operations, self.names)
        path = layer.path.partition(":")[0]
        if path in self._holders and (own := layer_of(path, self._modules[path], None)) is not None:
            # The norm of evaluation describes the layer, in training too.
            layer = replace(layer, gamma=own.gamma, parameters=own.parameters, shifts=own.shifts)
        return replace(layer, input=None if source is None else source.layer.path)
