"""The steps of a network that states its structure, which is not traced."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod, sqrt

from torch import nn

from normless.residual.classify import kind_of
from normless.residual.declared import BlockStructure, Projections, Structure, expanded
from normless.signal.steps import Kind, Step, Steps

_KINDS: dict[str | None, Kind] = {"weight": "weight", "norm": "norm", "activation": "activation"}


def steps_of_structure(model: nn.Module, structure: Structure) -> Steps:
    """The steps of a network along the modules that it states.

    Shapes are not known: zeros around an image are not counted, and a mean is taken over many positions.
    """
    return _Reader(model).read(structure)


class _Reader:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.steps = Steps()

    def read(self, structure: Structure) -> Steps:
        at = self._along(structure.stem, "", self._input())
        decoding, memory = structure.decoding, None
        for name, block in structure.blocks:
            if decoding is not None and name == decoding.first:
                memory = self._along(decoding.memory, "", at)
                at = self._along(decoding.stem, "", self._input())
            at = self._block(f"{name}.", block, at, memory)
        self.steps.outputs.add(self._along(structure.head, "", at))
        return self.steps

    def _input(self) -> int:
        return self.steps.append(Step("input"))

    def _block(self, prefix: str, block: BlockStructure, at: int, memory: int | None) -> int:
        fork = self._along(block.shared, prefix, at)
        end = self._along(block.branch, prefix, fork, memory)
        skip = self._along(block.skip, prefix, fork if block.shared or block.skip else at)
        if not block.skip and not block.identity_skip:
            skip = self.steps.append(Step("padding", (skip,), size=self._kept(prefix, block)))
        total = self.steps.append(Step("sum", (skip,)))
        self.steps.forks.add(fork)
        if end != fork:
            self.steps.branch_ends[end] = total
        return self._along(block.after_sum, prefix, total)

    def _kept(self, prefix: str, block: BlockStructure) -> float:
        """The share of the sum's channels that a skip path without weights has of its own, the rest being zeros."""
        weights = [
            module
            for path in block.branch
            if isinstance(path, str)
            for _, module in expanded(prefix + path, self.model.get_submodule(prefix + path))
            if kind_of(module) == "weight"
        ]
        shapes = [one.shape for module in weights for name, one in module.named_parameters() if name == "weight"]
        return min(1.0, shapes[0][1] / shapes[-1][0]) if shapes else 1.0

    def _along(self, paths: Iterable[str | Projections], prefix: str, at: int, memory: int | None = None) -> int:
        for path in paths:
            if isinstance(path, Projections):
                source = memory if path.of_memory and memory is not None else at
                # Query and key lead nowhere: they only compute a factor.
                for one, start in ((path.query, at), (path.key, source)):
                    self._along([one], prefix, start)
                at = self.steps.append(Step("attention", (self._along([path.value], prefix, source),)))
                continue
            for name, module in expanded(prefix + path, self.model.get_submodule(prefix + path)):
                at = self._module(name, module, at)
        return at

    def _module(self, path: str, module: nn.Module, at: int) -> int:
        kind = _KINDS.get(kind_of(module))
        if kind is not None:
            names = tuple(f"{path}.{name}" for name, _ in module.named_parameters(recurse=False))
            of = module if kind == "activation" else None
            return self.steps.append(Step(kind, (at,), path, () if of is not None else names, of))
        if isinstance(module, (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)):
            axes = int(type(module).__name__[-2])
            return self.steps.append(Step("greatest", (at,), size=sqrt(prod(_each(module.kernel_size, axes)))))
        return self.steps.append(Step("other", (at,)))


def _each(size: int | Sequence[int], axes: int) -> tuple[int, ...]:
    return (size,) * axes if isinstance(size, int) else tuple(size)
