"""How a network is executed: number formats, synchronized batch norms, compiled blocks, recomputed activations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.batchnorm import _BatchNorm

from normless.exclusive import borrowing, exclusive
from normless.optim import recompute_blocks
from normless.residual import ResidualMap
from normless.state import preserve_random_state
from normless_lab.process import free_memory
from normless_lab.train._settings import Precision, Recompute

_FORMATS: dict[Precision, str] = {
    "32-true": "float32",
    "64-true": "float64",
    "bf16-mixed": "bfloat16 by autocast, weights and sums float32",
    "bf16-true": "bfloat16",
}
# Below float32's smallest normal number, 2⁻¹²⁶.
DENORMAL = 1e-40


@borrowing
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Multiply float32 matrices in TF32 on a GPU's tensor cores within the context, as for convolutions.

    TF32 has the exponent of float32 and 10 bits of its fraction; sums are float32. torch takes it for convolutions by
    default and not for products of matrices. `NVIDIA_TF32_OVERRIDE=0` in the environment puts both off, as ever.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def arithmetic(precision: Precision, device: torch.device) -> str:
    """The number formats in words: `float32`, or on a card `float32 (convolutions and products in TF32)`."""
    name = _FORMATS[precision]
    return f"{name} (convolutions and products in TF32)" if name == "float32" and device.type == "cuda" else name


def device_name(device: torch.device) -> str:
    """The name of a card, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextmanager
def denormals_flushed() -> Iterator[None]:
    """Treat denormal numbers as 0 within the context, as most accelerators do; then restore the former setting.

    Processors are a hundred times slower on them. A signal or gradient that shrinks from block to block, as with sums
    times √½, is denormal in some fifty blocks of a very deep network before it is 0. Without effect where the
    processor does not support it. A library's threads inherit the setting when they start and keep it: enter before
    the first operator to reach those of oneDNN's convolutions.
    """
    before = are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def are_flushed() -> bool:
    """Return whether torch's operators treat denormal numbers as 0 in this thread."""
    return not torch.full((1,), DENORMAL, dtype=torch.float32).mul(1.0).view(torch.int32).item()


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def synchronized(network: nn.Module) -> nn.Module:
    """Return the network with torch's SyncBatchNorm for each batch norm, with the same parameters and buffers.

    Raises:
        ValueError: it has a batch norm with other statistics, such as those of ghost batches.
    """
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm) and type(module) not in _BATCH_NORMS:
            raise ValueError(
                f"sync_batch_norm takes the statistics of whole batches, but {name} is a {type(module).__name__} "
                "with statistics of its own; leave sync_batch_norm out."
            )
    converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    return converted


# Code of one structure of blocks: in training, evaluation and without gradients, for two sizes of batches each.
_VERSIONS = 6


@exclusive
def compile_blocks(model: nn.Module, residual_map: ResidualMap, *, backend: str = "inductor") -> int:
    """Let `torch.compile` compile each residual block of a network in place; return how many modules that are.

    A network with blocks that are not modules is compiled as a whole. Names, weights, gradients and saved files
    stay; compilation happens in the first pass. Where blocks differ in structure, their code is for fixed sizes. The
    limit of torch's compiler on the versions of one function, for the whole process, is raised as needed.

    Args:
        model: the network, converted before.
        residual_map: the network's map.
        backend: of `torch.compile`.
    """
    modules = _blocks(model, residual_map) or [model]
    # The text of a module with the shapes of its parameters.
    structures = {f"{module} {[tuple(each.shape) for each in module.parameters()]}" for module in modules}
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, _VERSIONS * len(structures))
    for module in modules:
        module.compile(backend=backend, dynamic=False if len(structures) > 1 else None)
    return len(modules)


def _blocks(model: nn.Module, mapped: ResidualMap) -> list[nn.Module]:
    """Return the outermost modules that are blocks and are called; none if some block is not such a module."""
    paths = {block.module for block in mapped.blocks}
    called = None if mapped.flow is None else mapped.flow.called
    if "" in paths or not (called is None or paths <= set(called)):
        return []
    outermost = [path for path in paths if not any(path.startswith(f"{outer}.") for outer in paths)]
    return [model.get_submodule(path) for path in sorted(outermost)]


# Of the free memory, what activations may take before they are recomputed.
FREE_SHARE = 0.5


def recompute_where_needed(how: Recompute, network: nn.Module, structure: ResidualMap, *inputs: Tensor) -> None:
    """Make the network recompute the activations of its blocks; with "auto" only if a batch needs too much memory."""
    device = inputs[0].device
    if how == "always" or (how == "auto" and activation_bytes(network, *inputs) > FREE_SHARE * free_memory(device)):
        recompute_blocks(network, residual_map=structure)


def activation_bytes(network: nn.Module, *inputs: Any) -> int:
    """Return the bytes that the backward pass of a training step reads besides parameters and buffers."""
    # A copy: what restores a network after a pass sees operators alone, where a training keeps less.
    network = deepcopy(network).train()
    # Weak references, so that the address of a freed storage is not taken for that of the next one.
    reference: Any = StorageWeakRef
    total, seen = 0, {reference(tensor.untyped_storage()) for tensor in (*network.parameters(), *network.buffers())}

    def count(tensor: Tensor) -> None:
        nonlocal total
        storage = tensor.untyped_storage()
        if reference(storage) not in seen:
            seen.add(reference(storage))
            total += storage.nbytes()

    with preserve_random_state(network), torch.enable_grad(), saved_tensors_hooks(count, _discarded):
        network(*inputs)
    return total


def _discarded(_: object) -> NoReturn:
    raise AssertionError("No backward pass was to follow.")
