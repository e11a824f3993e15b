"""Recomputation where the activations of a batch would not fit into the memory."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from normless.optim import recompute_blocks
from normless.probes import running
from normless.residual import ResidualMap
from normless_lab.process import free_memory
from normless_lab.train.settings import Recompute

# Of the free memory, what activations may take before they are recomputed.
FREE_SHARE = 0.5


def recompute_where_needed(how: Recompute, network: nn.Module, structure: ResidualMap, *inputs: Tensor) -> None:
    """Make the network recompute the activations of its blocks; with "auto" only if a batch needs too much memory."""
    device = inputs[0].device
    if how == "always" or (how == "auto" and activation_bytes(network, *inputs) > FREE_SHARE * free_memory(device)):
        recompute_blocks(network, residual_map=structure)


def activation_bytes(network: nn.Module, *inputs: Any) -> int:
    """Return the bytes that the backward pass of a training step reads besides parameters and buffers."""
    # Weak references, so that the address of a freed storage is not taken for that of the next one.
    reference: Any = StorageWeakRef
    total, seen = 0, {reference(tensor.untyped_storage()) for tensor in (*network.parameters(), *network.buffers())}

    def count(tensor: Tensor) -> None:
        nonlocal total
        storage = tensor.untyped_storage()
        if reference(storage) not in seen:
            seen.add(reference(storage))
            total += storage.nbytes()

    with running(network, training=True), torch.enable_grad(), saved_tensors_hooks(count, _discarded):
        network(*inputs)
    return total


def _discarded(_: object) -> NoReturn:
    raise AssertionError("No backward pass was to follow.")
