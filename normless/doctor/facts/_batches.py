"""Calibration batches: read, counted, and mixed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from normless._internal.arguments import arguments_of, on_device_of
from normless.doctor.facts._tracer import tensors
from normless.errors import InputsError
from normless.probes._measure import split_batch

Batches = list[tuple[Any, Any]]
"""Inputs and targets on the network's device."""


def size_of(inputs: Any) -> int:
    """Return the number of examples: the length of the first tensor with axes."""
    return next((len(tensor) for tensor in tensors(inputs) if tensor.dim()), 0)


def mixed(batches: Iterable[Any]) -> list[Any]:
    """Return the same examples, distributed at random over batches, since batches may be sorted by class.

    Batches of tensors of other shapes than one row for each example are returned as they are.
    """
    given = list(batches)
    leaves, shape = zip(*(tree_flatten(inputs) for inputs in given), strict=True)
    has_rows = all(
        isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size_of(own) for own in leaves for leaf in own
    )
    if not has_rows or len({tuple(leaf.shape[1:] for leaf in own) for own in leaves}) > 1:
        return given
    whole = [torch.cat(parts) for parts in zip(*leaves, strict=True)]
    order = torch.randperm(len(whole[0]), generator=torch.Generator().manual_seed(0)).to(whole[0].device)
    parts = zip(*(leaf[order].chunk(len(given)) for leaf in whole), strict=True)
    return [tree_unflatten(list(part), shape[0]) for part in parts]


def read_batches(model: nn.Module, batches: Any, most: int, least: int = 1, values: float = inf) -> Batches:
    """Return at most `most` batches on the network's device; beyond `least`, no more once they have so many values.

    Raises:
        InputsError: there is none, or they are not batches.
    """
    if isinstance(batches, (Tensor, Mapping, tuple)):
        batches = [batches]
    if not isinstance(batches, Iterable):
        raise InputsError(
            f"Expected calibration batches, a list or DataLoader of (inputs, targets), got {type(batches).__name__}."
        )
    found: Batches = []
    for batch in islice(batches, most):
        if len(found) >= least and sum(tensor.numel() for tensor in tensors(found)) > values:
            break
        inputs, targets = split_batch(batch)
        if not tensors(inputs):
            raise InputsError(
                f"Expected batches of tensors, (inputs, targets), got {type(inputs).__name__} as inputs."
            )
        positional, named = on_device_of(model, *arguments_of(inputs))
        (moved,), _ = on_device_of(model, (targets,), {})
        inputs = named if named or isinstance(inputs, Mapping) else positional
        found.append((inputs[0] if isinstance(inputs, tuple) and len(inputs) == 1 else inputs, moved))
    if not found:
        raise InputsError("Expected one calibration batch or more, got none; an iterator may have been read before.")
    return found


def are_several(batch: Any) -> bool:
    """Whether a batch is a loader or a list of batches, (inputs, targets) each, rather than a single batch.

    A list of two is a single batch, since loaders make lists of two inputs and two targets.
    """
    if isinstance(batch, list):
        return len(batch) > 2 and all(isinstance(part, (tuple, list)) and len(part) == 2 for part in batch)
    return isinstance(batch, Iterable) and not isinstance(batch, (Tensor, Mapping, tuple))
