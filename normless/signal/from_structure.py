"""The steps of a network that declares its structure and is not traced."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import get_args

from torch import nn

from normless.nn import ResidualSum, SkipOnlySum
from normless.residual.blocks import Kind as LayerKind
from normless.residual.classify import kind_of
from normless.residual.declared import BlockStructure, Projections, Structure, expanded
from normless.signal.layouts import window_size
from normless.signal.steps import Kind, Step, Steps

_KINDS: dict[str | None, Kind] = {kind: kind for kind in get_args(LayerKind)}


def steps_of_structure(model: nn.Module, structure: Structure) -> Steps:
    """The steps of a network along the modules of its declared structure.

    Shapes are unknown: the zeros around an image do not count, and a mean is over many positions.
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
        total = self._sum(prefix + block.sum, skip, end, fork)
        return self._along(block.after_sum, prefix, total)

    def _sum(self, path: str, skip: int, end: int, fork: int) -> int:
        """A residual sum with its factors and norms; the step of its result."""
        module = self.model.get_submodule(path)
        assert isinstance(module, ResidualSum)
        if module.norm_skip is not None:
            skip = self._module(f"{path}.norm_skip", module.norm_skip, skip)
        if module.multiplier is not None:
            end = self.steps.append(Step("factor", (end,), path, parameters=(f"{path}.multiplier",)))
        only = isinstance(module, SkipOnlySum)
        shares = (module.skip_factor, 0.0 if only else module.branch_factor)
        at = total = self.steps.append(Step("sum", (skip, end), shares=shares))
        self.steps.forks.add(fork)
        if module.factor != 1.0 and not only:
            total = self.steps.append(Step("factor", (at,), size=module.factor))
        self.steps.totals[at] = total
        return total if module.norm_total is None else self._module(f"{path}.norm_total", module.norm_total, total)

    def _kept(self, prefix: str, block: BlockStructure) -> float:
        """The share of the sum's channels that come from a skip path without weights; the others are zeros."""
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
                # Query and key only compute a factor; what masks their logits is unknown.
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
            return self.steps.append(Step(kind, (at,), path, () if kind == "activation" else names, module))
        if isinstance(module, (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)):
            return self.steps.append(Step("greatest", (at,), module=module, size=sqrt(window_size(module))))
        unchanged = isinstance(module, (nn.Identity, nn.Flatten, nn.Dropout))
        return self.steps.append(Step("layout" if unchanged else "other", (at,), path, module=module))
