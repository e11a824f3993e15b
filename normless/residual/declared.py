"""Find the residual map of a network, as the network declares it or by tracing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from operator import attrgetter
from typing import Any, Protocol, runtime_checkable

from torch import nn

from normless._internal.arguments import carried_inputs, forward_arguments, inputs_missing, require_network
from normless._internal.copying import require_whole
from normless._internal.exclusive import exclusive
from normless._internal.state import collection_paused
from normless.errors import UnresolvedStructureError
from normless.nn import DomainBatchNorm, ResidualSum, SkipOnlySum
from normless.residual.blocks import Layer, ResidualBlock
from normless.residual.classify import window_size
from normless.residual.description import layer_of
from normless.residual.network import ResidualMap
from normless.residual.steps import Step, Steps

# The modules that a residual sum may apply on the branch, on the skip path and after the addition.
_SIDES = (("norm_branch", "multiplier"), ("norm_skip", "skip_multiplier"), ("norm_total",))


@dataclass(frozen=True)
class Projections:
    """The query, key and value projections of an attention, in execution order; query and key are gating.

    `of_memory` says that key and value read the memory of `Decoding` instead of the query's input.
    """

    query: str
    key: str
    value: str
    of_memory: bool = False


@dataclass(frozen=True)
class BlockStructure:
    """The modules of a block in execution order, by path relative to it; `ResidualBlock` explains the parts."""

    branch: Sequence[str | Projections]
    skip: Sequence[str] = ()
    shared: Sequence[str] = ()
    after_sum: Sequence[str] = ()
    identity_skip: bool = True
    sum: str = "sum"


@dataclass(frozen=True)
class Decoding:
    """A decoder: a second stack of blocks with its own input that reads the output of the first stack, the memory.

    Attributes:
        first: the name of its first block.
        memory: the paths of the modules after the last block of the first stack.
        stem: the paths of the modules before its own first block.
    """

    first: str
    memory: Sequence[str]
    stem: Sequence[str]


@dataclass(frozen=True)
class Structure:
    """The modules of a network by path, in execution order: the stem, the blocks by name, the head.

    `decoding` says where the blocks of a decoder start; it is None for a single stack.
    """

    stem: Sequence[str]
    blocks: Sequence[tuple[str, BlockStructure]]
    head: Sequence[str]
    decoding: Decoding | None = None


@runtime_checkable
class StatesStructure(Protocol):
    """A module that declares its residual structure."""

    def residual_structure(self) -> Structure:
        """Name the modules of stem, blocks and head in execution order."""
        ...


@exclusive
def residual_map(
    model: nn.Module, *inputs: Any, strict: bool = False, example_inputs: Any = None, **kwargs: Any
) -> ResidualMap:
    """Find the residual blocks of a network.

    A network that declares its structure, as those of `normless.models` do, is not run. Any other network is exported
    with `torch.export`, which leaves its weights, buffers, mode and random state unchanged.

    Args:
        model: any network. The map includes layers that run only in the other mode (train or eval).
        inputs: positional arguments of `forward`, needed if the network must be traced. A converted network carries
            their shapes. The values do not matter.
        strict: raise an error if any part is unresolved instead of listing it in the map's `unresolved`.
        example_inputs: replaces `inputs` and `kwargs`: a tensor, a tuple of positional arguments or a dictionary of
            keyword arguments.
        kwargs: keyword arguments of `forward`, such as `input_ids`.

    Raises:
        UnresolvedStructureError: the network must be traced and inputs are missing, or it cannot be exported; with
            `strict`, a part of it is unresolved.
    """
    require_network(model)
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if not (inputs or kwargs):
        inputs, kwargs = carried_inputs(model)
    if isinstance(model, StatesStructure):
        mapped = StructureReader(model, model.residual_structure()).map
    elif inputs or kwargs:
        require_whole(model, UnresolvedStructureError)
        # torch.export takes a second to import; a network that declares its structure does not need it.
        from normless.residual.modes import map_of_both_modes

        mapped = map_of_both_modes(model, inputs, kwargs)
    else:
        raise inputs_missing(model, "residual_map", "does not state its residual structure, so it ")
    if strict and mapped.unresolved:
        listed = "; ".join(map(str, mapped.unresolved))
        raise UnresolvedStructureError(
            f"Parts of this {type(model).__name__} cannot be understood: {listed}. Without strict=True they are "
            "listed in the map's `unresolved`, and the rest is mapped."
        )
    return mapped


class StructureReader:
    """Read a declared structure and the modules that are now at its paths, also in a converted network.

    Shapes are unknown: zero padding is ignored, and a mean is taken to be over many positions.

    Attributes:
        steps: a step for each module, constant factor and sum.
        layers: the layers among the steps, by the step's index.
        map: the map of the layers.
    """

    @collection_paused()
    def __init__(self, model: nn.Module, structure: Structure) -> None:
        self.model, self.steps = model, Steps()
        self.layers: dict[int, Layer] = {}
        stem, at = self._along(structure.stem, "", self.steps.append(Step("input")))
        decoding, memory = structure.decoding, at
        blocks: list[ResidualBlock] = []
        trunk: tuple[Layer, ...] = ()
        for name, block in structure.blocks:
            if decoding is not None and name == decoding.first:
                after, memory = self._along(decoding.memory, "", at)
                before, at = self._along(decoding.stem, "", self.steps.append(Step("input")))
                trunk = after + before
            mapped, at = self._block(name, block, at, memory)
            blocks.append(mapped)
        head, at = self._along(structure.head, "", at)
        self.steps.outputs.add(at)
        self.map = ResidualMap(tuple(blocks), stem_layers=stem, trunk_layers=trunk, head_layers=head)

    def _block(self, name: str, block: BlockStructure, at: int, memory: int) -> tuple[ResidualBlock, int]:
        """Return a block that reads the step `at`, and the step of its result."""
        prefix = f"{name}."
        path = prefix + block.sum
        module = self.model.get_submodule(path)
        total = module if isinstance(module, ResidualSum) else ResidualSum()
        on_branch, on_skip, on_total = (
            [f"{block.sum}.{part}" for part in side if getattr(total, part) is not None] for side in _SIDES
        )
        shared, fork = self._along(block.shared, prefix, at)
        branch, end = self._along([*block.branch, *on_branch], prefix, fork, memory)
        skip, skip_end = self._along([*block.skip, *on_skip], prefix, fork)
        if not block.skip and not block.identity_skip:
            # The structure does not declare the operations on the skip path.
            skip_end = self.steps.append(Step("other", (skip_end,)))
        after, result = self._along([*on_total, *block.after_sum], prefix, self._sum(total, skip_end, end, fork))
        last = next((layer for layer in reversed(branch) if layer.kind not in ("scale", "dropout")), None)
        at_end = self.layers.get(self.steps.origin(end, ("factor",)))
        return ResidualBlock(
            name=name,
            branch_layers=branch,
            skip_layers=skip,
            shared_layers=shared,
            after_sum=after,
            identity_skip=block.identity_skip and not skip,
            ends_in_layer=last is not None and last == at_end,
            sum=path,
            chain=sum(layer.kind == "weight" and not layer.gating for layer in branch),
            ends=(last,),
        ), result

    def _sum(self, module: ResidualSum, skip: int, end: int, fork: int) -> int:
        """Append the step of a residual sum, including its constant factors."""
        only = isinstance(module, SkipOnlySum)
        shares = (module.skip_factor, 0.0 if only else module.branch_factor)
        at = total = self.steps.append(Step("sum", (skip, end), shares=shares))
        if module.factor != 1.0 and not only:
            total = self.steps.append(Step("factor", (at,), size=module.factor))
        self.steps.forks.add(fork)
        self.steps.totals[at] = total
        return total

    def _along(
        self, paths: Iterable[str | Projections], prefix: str, at: int, memory: int = 0
    ) -> tuple[tuple[Layer, ...], int]:
        """Return the layers along `paths` from the step `at` on, and the step of their result."""
        start = len(self.steps.steps)
        for path in paths:
            if isinstance(path, Projections):
                source = memory if path.of_memory else at
                for name, read in ((path.query, at), (path.key, source), (path.value, source)):
                    end = self._module(prefix + name, read)
                # Query and key only compute a factor; the mask of their logits is unknown.
                at = self.steps.append(Step("attention", (end,)))
            else:
                at = self._module(prefix + path, at)
        main = {*self.steps.reachable([at], lambda index: self.steps[index].reads if index >= start else ())}
        own = ((index, self.layers[index]) for index in range(start, len(self.steps.steps)) if index in self.layers)
        return tuple(layer if index in main else replace(layer, gating=True) for index, layer in own), at

    def _module(self, path: str, at: int) -> int:
        """Return the step of the result of a module, with the modules that run before it, or of a factor."""
        part = attrgetter(path)(self.model)
        if isinstance(part, DomainBatchNorm):
            return self._module(f"{path}.norms.{part.domain}", at)
        is_sequence = isinstance(part, nn.Sequential)
        for name, _ in part.named_children() if isinstance(part, nn.Module) else ():
            if is_sequence or name == "before":
                at = self._module(f"{path}.{name}", at)
        if is_sequence or isinstance(part, nn.Identity):
            return at
        source = self.layers[at].path if at in self.layers else None
        if not isinstance(part, nn.Module):
            total, _, name = path.rpartition(".")
            words = name.replace("_", " ")
            layer: Layer | None = Layer(total, "scale", source, gamma=path, parameters=(path,), description=words)
            step = Step("factor", (at,), total, (path,))
        elif (layer := layer_of(path, part, source)) is not None:
            assert layer.kind != "scale"
            assert layer.kind != "direction"
            step = Step(layer.kind, (at,), path, layer.parameters, part, shifts=layer.shifts)
        elif isinstance(part, (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)):
            step = Step("max_pool", (at,), module=part, size=sqrt(window_size(part)))
        else:
            unchanged = isinstance(part, (nn.Flatten, nn.Dropout))
            step = Step("layout" if unchanged else "other", (at,), path, module=part)
        if layer is not None:
            self.layers[len(self.steps.steps)] = layer
        return self.steps.append(step)
