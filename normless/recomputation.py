"""Training with less memory: the activations of segments of blocks are computed twice instead of kept."""

from __future__ import annotations

from collections import defaultdict
from math import ceil, sqrt
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from normless.arguments import forward_arguments, on_device_of
from normless.errors import UnresolvedStructureError
from normless.lifting import running
from normless.nn import Segments
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map


def recompute_blocks(
    model: nn.Module,
    *inputs: Any,
    segments: int | Literal["auto"] = "auto",
    budget: float | None = None,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
    **kwargs: Any,
) -> int:
    """Train a network in place with less memory: keep the inputs of segments of blocks, compute the rest again.

    A step takes one more forward pass through the blocks, that of one segment at a time. With √L segments of L
    blocks, memory for activations grows by √L (Chen et al. 2016, section 4.2). Names, weights and gradients stay.
    To be called after `convert`; hooks on modules in the blocks run in both passes.

    Args:
        model: a network whose blocks are, or are in, children of `nn.Sequential` modules that its forward calls.
        inputs, kwargs, example_inputs: as in `residual_map`; with a budget a whole training batch.
        segments: how many in all, at least one in each `nn.Sequential`; "auto" is √L.
        budget: bytes that activations may take. If a pass on the inputs stays below, nothing is changed.
        residual_map: the network's map where it is known.

    Returns:
        The number of segments, 0 where the budget is enough.

    Raises:
        UnresolvedStructureError: no two blocks are children of one `nn.Sequential`, or there is no map.
        ValueError: fewer than one segment, or a budget without inputs.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    if segments != "auto" and segments < 1:
        raise ValueError(f"Expected segments to be 1 or more, or 'auto', got {segments}.")
    if budget is not None and not (inputs or kwargs):
        raise ValueError("A budget needs the inputs of a training step, on which activations are counted.")
    if budget is not None and activation_bytes(model, *inputs, **kwargs) <= budget:
        return 0
    runs = _runs(model, residual_map or find_residual_map(model, *inputs, **kwargs))
    blocks = sum(map(len, runs))
    length = ceil(blocks / (sqrt(blocks) if segments == "auto" else min(segments, blocks)))
    for run in runs:
        # The class alone, so that names, hooks and whoever refers to the module stay.
        run.__class__, run.length = Segments, length  # type: ignore[assignment]
    return sum(ceil(len(run) / length) for run in runs)


def _runs(model: nn.Module, mapped: ResidualMap) -> list[nn.Sequential]:
    """The `nn.Sequential` modules whose children are blocks or have them inside, outermost blocks only."""
    runs: dict[nn.Sequential, set[str]] = defaultdict(set)
    for block in mapped.blocks:
        path = block.name.partition(":")[0]
        while path:
            path, _, child = path.rpartition(".")
            parent = model.get_submodule(path)
            if type(parent) in (nn.Sequential, Segments):
                runs[parent].add(child)  # type: ignore[index]
                break
    called = None if mapped.flow is None else mapped.flow.called
    paths = {module: path for path, module in model.named_modules()}
    found = [run for run, names in runs.items() if len(names) > 1 and (called is None or paths[run] in called)]
    if not found:
        raise UnresolvedStructureError(
            f"Expected consecutive residual blocks of this {type(model).__name__} to be in children of an "
            "nn.Sequential that its forward calls, and there are none, so that no segment can be recomputed as one; "
            "put them in an nn.Sequential, or checkpoint each block in forward code by torch.utils.checkpoint."
        )
    return found


def activation_bytes(model: nn.Module, *inputs: Any, **kwargs: Any) -> int:
    """Bytes that the backward pass of a training step would read beside parameters and buffers; none are kept."""
    # Weak references, so that the address of a freed storage is not taken for that of the next one.
    reference: Any = StorageWeakRef
    total, seen = 0, {reference(one.untyped_storage()) for one in (*model.parameters(), *model.buffers())}

    def count(one: Tensor) -> None:
        nonlocal total
        storage = one.untyped_storage()
        if reference(storage) not in seen:
            seen.add(reference(storage))
            total += storage.nbytes()

    args, named = on_device_of(model, inputs, kwargs)
    with running(model, training=True), torch.enable_grad(), saved_tensors_hooks(count, _discarded):
        model(*args, **named)
    return total


def _discarded(_: object) -> NoReturn:
    raise AssertionError("No backward pass was to follow.")
