"""A network under conversion, as edits read and change it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar, cast

from torch import Tensor, nn

from normless._internal.arguments import applied
from normless.edits._calibration import Calibration
from normless.edits._lifted import Lifted
from normless.edits._original import Original
from normless.edits._plan import Change as Change
from normless.edits._trained import is_trained, module_at, parameter_at
from normless.errors import MissingValuesError, UnsupportedEditError
from normless.nn import ResidualSum, ScalarAffine
from normless.nn._activation import ShiftedActivation
from normless.nn._affine import TakesParts, is_attention, takes_scalars, with_input_bias, with_scalars
from normless.residual import Layer, ResidualBlock, ResidualMap
from normless.residual._classify import embedding_weights
from normless.residual._network import is_within
from normless.signal._factors import Gain, gains
from normless.state import running

Module = TypeVar("Module", bound=nn.Module)


class Applicable(Protocol):
    """An edit, as `Surgery.run` applies it."""

    def apply(self, surgery: Surgery) -> None:
        """Change `surgery.model` in place and record every change."""


@dataclass
class Surgery:
    """A network under conversion.

    Attributes:
        model: the copy that the edits change.
        map: the residual map of the network before the first edit, with modules that run repeatedly listed once. Its
            paths remain valid.
        inputs: positional example inputs, possibly empty, for edits that calibrate on data and for operators in
            forward code.
        kwargs: keyword example inputs, likewise.
        original: the network before the first edit, if the model is a copy of it without values, for a plan.
        edit: the edit that is being applied, for messages.
        only: the qualified names of the parts to convert, the whole network if empty; the map covers only these.
        removed: the paths of the layers that edits removed.
        replaced: the paths at which an edit put another module.
        zeroed: the names of the parameters that edits let start at zero.
        calibration: what edits of trained networks measure and share.
        changes: the changes by the edits, in order.
        original_paths: the paths of the modules before the first edit.
        runs: the number of runs of each layer before the first edit, by path.
        lifted: converts operators in forward code to modules.

    Raises:
        UnsupportedEditError: the network cannot provide what a method returns; the message names the edit, the
            module and the reason.
    """

    model: nn.Module
    map: ResidualMap
    inputs: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    original: Original | None = None
    edit: object = None
    only: tuple[str, ...] = ()
    removed: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    zeroed: set[str] = field(default_factory=set)
    calibration: Calibration = field(default_factory=Calibration)
    changes: list[Change] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._edit_text = repr(self.edit)
        self.runs = Counter(layer.path for layer in self.map.layers())
        self.map = self.map.with_shared_once()
        self.lifted = Lifted(self.model, self.map)
        first: dict[nn.Module, str] = {}
        self._aliases: dict[str, list[str]] = defaultdict(list)
        for path, module in self.model.named_modules(remove_duplicate=False):
            if first.setdefault(module, path) != path:
                self._aliases[first[module]].append(path)
        self.original_paths = {*first.values()}
        model = self.model if self.original is None else self.original.model
        self.is_meta = any(parameter.is_meta for parameter in model.parameters())
        norms = (layer for layer in self.map.layers() if layer.kind == "norm" and not self.is_meta)
        self._trained_norm = next((layer.path for layer in norms if is_trained(layer, model)), None)

    def trained_norm(self) -> str | None:
        """Return the path of a norm that was trained before the first edit, or None."""
        return self._trained_norm

    def gains(self) -> list[Gain]:
        """Return the factors of weights that keep the scale of activations without norms."""
        if self.original is None:
            return gains(self.model, self.map.flow)
        if self.changes:
            raise MissingValuesError("The edits before this one may have changed weights.")
        return self.original.gains

    def covers(self, path: str) -> bool:
        """Whether a module is in the converted part of the network."""
        return not self.only or is_within(path, self.only)

    def unsupported(self, path: str, reason: str) -> UnsupportedEditError:
        """Return the error that the current edit is not possible at a module, with the reason."""
        where = f"at {path}" if path else f"in this {type(self.model).__name__}"
        return UnsupportedEditError(f"{self.edit!r} is not possible {where}: {reason}.")

    @contextmanager
    def refusing_at(self, path: str, reason: str = "{}") -> Iterator[None]:
        """Add the edit and the module to a ValueError; its message replaces {} in `reason`."""
        try:
            yield
        except ValueError as error:
            raise self.unsupported(path, reason.replace("{}", str(error).rstrip("."))) from error

    @contextmanager
    def hooked(self, paths: Iterable[str], hook: Callable[..., Any]) -> Iterator[None]:
        """Register a forward hook on modules; the module's path is its first argument."""
        with ExitStack() as stack:
            for path in paths:
                stack.callback(self.get(path).register_forward_hook(partial(hook, path)).remove)
            yield

    def profile(self, paths: Iterable[str], hook: Callable[..., Any]) -> None:
        """Run the network on its example inputs in evaluation, with a hook as in `hooked`."""
        with self.hooked(paths, hook), running(self.model, training=False):
            applied(self.model, *self.inputs, **self.kwargs)

    def need_inputs(self, what: str, scheme: str) -> None:
        """Check that there are example inputs."""
        if not (self.inputs or self.kwargs):
            example = f"convert(model, '{scheme}', batch)"
            raise self.unsupported("", f"it {what} on data: pass a batch, as in {example}")

    def get(self, path: str) -> nn.Module:
        """Return the module that is now at `path`."""
        return module_at(self.model, path)

    def parameter(self, name: str) -> nn.Parameter:
        """Return the parameter that now has this qualified name."""
        return parameter_at(self.model, name)

    def freeze(self, name: str) -> None:
        """Convert a parameter on which nothing depends any more to a buffer of the same name."""
        owner = self.get(name.rpartition(".")[0])
        value = owner._parameters.pop(name.rpartition(".")[2], None)
        if value is not None:
            owner.register_buffer(name.rpartition(".")[2], value.detach())

    def operation(self, layer: Layer) -> nn.Module:
        """Return the module of a layer, which may run elsewhere too; a function becomes a module."""
        return self.get(self.own_path(layer) if ":" in layer.path else layer.path)

    def once(self, path: str) -> None:
        """Check that the layer at `path` runs once in a forward pass."""
        if path in self.map.repeated:
            reason = "this one module runs at several places of the network; give each place a module of its own, or "
            reason += "convert other parts by only="
            raise self.unsupported(path, reason)

    def single(self, path: str) -> nn.Module:
        """Return the module at `path` after checking that it runs once."""
        self.once(path)
        return self.get(path)

    def is_left(self, layer: Layer) -> bool:
        """Whether no edit has removed the layer."""
        return layer.path not in self.removed

    def left(self, layers: Iterable[Layer], kind: str) -> list[Layer]:
        """Return the layers of a kind that no edit has removed."""
        return [layer for layer in layers if layer.kind == kind and self.is_left(layer)]

    def stands_alone(self, layer: Layer) -> bool:
        """Whether a layer is a module that runs once, so that it can be changed in place."""
        return ":" not in layer.path and layer.path not in self.map.repeated

    def can_fold(self, layer: Layer) -> bool:
        """Whether a weight layer is a module that takes scalar parts."""
        return self.stands_alone(layer) and layer.called and takes_scalars(self.get(layer.path))

    def input_of(self, layer: Layer) -> Layer | None:
        """Return the layer that now produces the input of this layer; removed norms pass their input on."""
        while layer.input is not None:
            source = self.map.by_path.get(layer.input)
            if source is None or self.is_left(source):
                return source
            layer = source
        return None

    def last_left(self, end: Layer | None) -> Layer | None:
        """Return a layer, or the layer that produced its input if it was removed."""
        return end if end is None or self.is_left(end) else self.input_of(end)

    def weight_layers(self) -> list[Layer]:
        """Return the remaining weight layers in execution order."""
        return self.left(self.map.layers(), "weight")

    def weight_of(self, layer: Layer) -> nn.Parameter:
        """Return the weight of a weight layer, the largest of its parameters."""
        return max(map(self.parameter, layer.parameters), key=Tensor.numel)

    def tied_layers(self) -> set[str]:
        """Return the paths of weight layers tied to an embedding: a new weight would change the input."""
        tables = embedding_weights(self.model)
        return {
            layer.path
            for layer in self.weight_layers()
            if any(id(self.parameter(name)) in tables for name in layer.parameters)
        }

    def blocks(self) -> tuple[ResidualBlock, ...]:
        """Return the residual blocks after checking that there are any."""
        if not self.map.blocks:
            raise self.unsupported("", "it has no residual block")
        return self.map.blocks

    @cached_property
    def depth(self) -> int:
        """L, the number of blocks in series; a block that runs repeatedly counts each time."""
        return sum(len(block.levels) for block in self.blocks())

    def branch_end(self, block: ResidualBlock) -> Layer | None:
        """Return the layer with the output that the sum now adds, None if an operation follows it."""
        return self.last_left(block.ends[0]) if block.ends_in_layer and block.ends else None

    def last_weight(self, block: ResidualBlock, branch: tuple[Layer, ...] | None = None) -> str:
        """Return the path of the last weight layer of a block's branch, or of one of several, without gates."""
        layers = block.branch_layers if branch is None else branch
        weights = [layer.path for layer in layers if layer.kind == "weight" and not layer.gating]
        if not weights:
            raise self.unsupported(block.name, "its branch has no weight layer")
        return weights[-1]

    def classifier(self) -> str:
        """Return the path of the classifier."""
        if self.map.classifier is None:
            raise self.unsupported("", "no classifier was found after its blocks")
        return self.map.classifier

    def norms(self) -> list[Layer]:
        """Return all normalizations at their first run, removed or not."""
        return [self.map.by_path[path] for path in self.map.norms]

    def need_no_norms(self) -> None:
        """Check that no normalization is left."""
        for layer in self.left(self.norms(), "norm"):
            raise self.unsupported(layer.path, "this normalization is still there; RemoveNorms removes it before")

    def run(self, edit: Applicable) -> None:
        """Apply one edit; its records and errors carry its name."""
        self.edit, self._edit_text = edit, repr(edit)
        edit.apply(self)

    def record(self, path: str, what: str) -> None:
        """Note a change of the module at `path`, made by the edit that is being applied."""
        self.changes.append(Change(self._edit_text, path, what))

    def replace(self, path: str, module: nn.Module) -> None:
        """Replace the module at `path` under each of its names, in the same mode."""
        self.replaced.add(path)
        old = self.get(path)
        module.train(old.training)
        aliases = self._aliases.get(path, ())
        modules = dict(self.model.named_modules(remove_duplicate=False)) if aliases else {}
        for alias in (path, *(alias for alias in aliases if modules.get(alias) is old)):
            parent, _, name = alias.rpartition(".")
            setattr(self.get(parent), name, module)

    def not_in_place(self, layer: Layer) -> None:
        """Stop a layer from overwriting its input, which others may read once a norm between them is removed."""
        module: Any = self.operation(layer) if layer.in_place else None
        if getattr(module, "inplace", False):
            module.inplace = False

    def affine(self, path: str) -> ScalarAffine:
        """Convert the weight layer at `path`, which runs once, to a layer with scalar parts."""
        known = self.map.by_path.get(path)
        if ":" in path or (known is not None and not known.called):
            raise self.unsupported(path, "forward code uses its weight without calling a module that owns it")
        return self.changed(path, with_scalars)

    def add_scalar(self, path: str, part: str, value: Tensor) -> None:
        """Give the weight layer at `path` a scalar part with this initial value, or share a given parameter."""
        parent, _, name = path.rpartition(".")
        # Its attention reads the parameters of a projection and never runs it.
        is_projection = name == "out_proj" and is_attention(self.get(parent))
        if is_projection:
            layer: TakesParts = with_input_bias(self.single(path))
            setattr(self.get(parent), name, layer)
        elif ":" not in path and is_attention(self.get(path)):
            layer = self.changed(path, with_input_bias)
        else:
            layer = self.affine(path)
        with self.refusing_at(path):
            layer.add_part(part, value)

    def changed(self, path: str, change: Callable[[nn.Module], Module]) -> Module:
        """Replace the module at `path`, which runs once, by another form of it, and return that."""
        old = self.single(path)
        with self.refusing_at(path):
            new = change(old)
        if new is not old:
            self.replace(path, new)
        return new

    def add_shift(self, layer: Layer, part: str) -> None:
        """Give an activation, which may be a function, a zero scalar bias: `input_bias` or `output_bias`."""
        path = self.own_path(layer)
        module = self.get(path)
        if not isinstance(module, ShiftedActivation):
            module = ShiftedActivation(module)
            self.replace(path, module)
        with self.refusing_at(layer.path):
            module.add_part(part, next(self.model.parameters()))

    def own_path(self, layer: Layer) -> str:
        """Return the path of a module that is this layer and no other."""
        if self.stands_alone(layer):
            return layer.path
        with self.refusing_at(layer.path):
            return self.lifted.module_of(layer)

    def input_shapes(self, path: str) -> list[tuple[int, ...] | None]:
        """Return the shapes of the tensors that the module at `path` reads in its first run; empty if unknown."""
        flow, names = self.map.flow, (path, *self._aliases.get(path, ()))
        own = {at for name in names for at in self._operations.get(name, ())}
        read = dict.fromkeys(parent for at in sorted(own) for parent in flow[at].parents)
        return [flow[parent].shape for parent in read if parent not in own]

    @cached_property
    def _operations(self) -> dict[str, list[int]]:
        """The operations of the first run of each module, by qualified name."""
        operations: dict[str, list[int]] = defaultdict(list)
        first: dict[str, int] = {}
        for at, operation in enumerate(self.map.flow.operations):
            for name, run in zip(operation.modules, operation.runs, strict=True):
                if first.setdefault(name, run) == run:
                    operations[name].append(at)
        return operations

    def input_shape(self, path: str) -> tuple[int, ...] | None:
        """Return the shape of the first tensor that the module at `path` reads, None if unknown."""
        return next(iter(self.input_shapes(path)), None)

    def remove_function(self, layer: Layer) -> None:
        """Remove a norm that is a function in forward code, and the parameters that only it reads."""
        with self.refusing_at(layer.path, "the normalization is a function in the forward code: {}"):
            self.lifted.drop(layer)

    def sum_paths(self, block: ResidualBlock) -> tuple[str, ...]:
        """Return the paths of the modules that add the branches of a block; operators become modules."""
        fixed = "its residual sum is an operator in the forward code and cannot be made a module: {}"
        with self.refusing_at(block.name, f"{fixed} (normless.nn.ResidualSum adds as a module)"):
            return (block.sum,) if block.sum is not None else self.lifted.sums_of(block)

    def sums(self, block: ResidualBlock) -> tuple[ResidualSum, ...]:
        """Return the modules at `sum_paths`."""
        return tuple(cast(ResidualSum, self.get(path)) for path in self.sum_paths(block))

    def lifted_sums(self) -> Iterator[tuple[ResidualBlock, tuple[str, ...]]]:
        """Iterate over blocks with the paths of their sums that were operators and are now modules."""
        for block in self.map.walk():
            calls = (addition.made_by for addition in block.additions)
            paths = tuple(self.lifted.sums[call] for call in calls if call in self.lifted.sums)
            if paths:
                yield block, paths

    def sum(self, block: ResidualBlock) -> ResidualSum:
        """Return the module that computes a block's sum."""
        return self.sums(block)[-1]

    def adds_plainly(self, block: ResidualBlock) -> bool:
        """Whether a block's sum is skip path plus branch and nothing else."""
        is_operator = block.sum is None and not any(
            addition.made_by in self.lifted.sums for addition in block.additions
        )
        return is_operator or all(total.is_plain for total in self.sums(block))
