"""Training with less memory: compute the activations of segments of blocks twice instead of storing them."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import ceil, sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from normless._internal.arguments import forward_arguments
from normless.errors import UnresolvedStructureError
from normless.exclusive import exclusive
from normless.residual import ResidualMap, residual_map as find_residual_map


@exclusive
def recompute_blocks(
    model: nn.Module,
    *inputs: Any,
    segments: int | Literal["auto"] = "auto",
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
    **kwargs: Any,
) -> int:
    """Change a network in place to store only the inputs of segments of blocks and compute the rest again.

    A step takes an additional forward pass through the blocks, one segment at a time. With about √L segments of L
    blocks, the memory of activations grows as √L (Chen et al. 2016, section 4.2). Names, weights and gradients do not
    change. Call it after `convert`; hooks on modules in the blocks run in both passes.

    Args:
        model: a network whose blocks are, or are in, children of `nn.Sequential` modules that its forward calls.
        inputs, kwargs, example_inputs: as in `residual_map`.
        segments: the total number of segments, at least one in each `nn.Sequential`; "auto" is 2√L.
        residual_map: the network's map; computed if None.

    Returns:
        The number of segments.

    Raises:
        UnresolvedStructureError: no two blocks are children of one `nn.Sequential`, or there is no map.
        ValueError: fewer than one segment.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if segments != "auto" and segments < 1:
        raise ValueError(f"Expected segments to be 1 or more, or 'auto', got {segments}.")
    runs = _runs(model, residual_map or find_residual_map(model, *inputs, **kwargs))
    blocks = sum(map(len, runs))
    # The memory of S inputs and the activations of L/S blocks, each about four inputs large, is least at S = √(4L).
    length = ceil(blocks / min(2 * sqrt(blocks) if segments == "auto" else segments, blocks))
    for run in runs:
        # Only the class changes, so that names, hooks and references to the module stay valid.
        run.__class__, run.length = Segments, length  # type: ignore[assignment]
    return sum(ceil(len(run) / length) for run in runs)


def _runs(model: nn.Module, mapped: ResidualMap) -> list[nn.Sequential]:
    """Return the `nn.Sequential` modules with children that are or contain outermost blocks."""
    runs: dict[nn.Sequential, set[str]] = defaultdict(set)
    for block in mapped.blocks:
        path = block.module
        while path:
            path, _, child = path.rpartition(".")
            parent = model.get_submodule(path)
            if type(parent) in (nn.Sequential, Segments):
                runs[parent].add(child)  # type: ignore[index]
                break
    paths = {module: path for path, module in model.named_modules()}
    usable = [run for run, names in runs.items() if len(names) > 1 and paths[run] in mapped.flow.called]
    if not usable:
        raise UnresolvedStructureError(
            f"Expected residual blocks of this {type(model).__name__} in children of an nn.Sequential that its "
            "forward calls, and there are none; call torch.utils.checkpoint on each block in forward code instead."
        )
    return usable


class Segments(nn.Sequential):
    """An `nn.Sequential` that stores only the inputs of every `length` modules in a pass with gradients.

    The backward pass runs the modules again with the buffers and the random state of the first pass, so that
    gradients are the same to the last bit and running statistics change only once.
    """

    length: int

    def forward(self, x: Any) -> Any:
        """Apply the modules in order."""
        if not torch.is_grad_enabled():
            return _in_turn([*self], x)
        modules = list(self)
        for start in range(0, len(modules), self.length):
            segment = modules[start : start + self.length]
            contexts = partial(_contexts, segment)
            x = checkpoint(partial(_in_turn, segment), x, use_reentrant=False, context_fn=contexts)
        return x


def _in_turn(modules: list[nn.Module], value: Any) -> Any:
    for module in modules:
        value = module(value)
    return value


def _contexts(modules: list[nn.Module]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return contexts for the first pass (none) and for later passes (with copies of the earlier buffers)."""
    return nullcontext(), _EarlierBuffers(modules)


class _EarlierBuffers(AbstractContextManager[None]):
    """A reusable context in which the buffers of modules are copies of their values when it was created."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self._tables = [part._buffers for module in modules for part in module.modules() if part._buffers]
        self._earlier = [_copies(table) for table in self._tables]

    def __enter__(self) -> None:
        self._now = [dict(table) for table in self._tables]
        for table, values in zip(self._tables, self._earlier, strict=True):
            table.update(_copies(values))

    def __exit__(self, *_: object) -> None:
        for table, values in zip(self._tables, self._now, strict=True):
            table.update(values)


def _copies(buffers: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()}
