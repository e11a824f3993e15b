"""Compilation by residual block: blocks of one structure share their code, and its time does not grow with depth."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from normless._internal.arguments import forward_arguments
from normless._internal.exclusive import exclusive
from normless.residual import ResidualMap
from normless.residual import residual_map as find_residual_map

# Code of one structure of blocks: in training, evaluation and without gradients, for two sizes of batches each.
_VERSIONS = 6


@exclusive
def compile_blocks(
    model: nn.Module,
    *inputs: Any,
    residual_map: ResidualMap | None = None,
    example_inputs: Any = None,
    backend: str = "inductor",
    **kwargs: Any,
) -> int:
    """Let `torch.compile` compile each residual block of a network in place; return how many modules that are.

    A network with blocks that are not modules is compiled as a whole. Names, weights, gradients and saved files
    stay; compilation happens in the first pass. Where blocks differ in structure, their code is for fixed sizes. The
    limit of torch's compiler on the versions of one function, for the whole process, is raised as needed.

    Args:
        model: the network, converted before.
        inputs, kwargs, example_inputs: as in `residual_map`.
        residual_map: the network's map where it is known.
        backend: of `torch.compile`.

    Raises:
        UnresolvedStructureError: the network cannot be mapped.
    """
    inputs, kwargs = forward_arguments(inputs, kwargs, example_inputs)
    mapped = residual_map or find_residual_map(model, *inputs, **kwargs)
    modules = _blocks(model, mapped) or [model]
    structures = {_structure(module) for module in modules}
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, _VERSIONS * len(structures))
    for module in modules:
        module.compile(backend=backend, dynamic=False if len(structures) > 1 else None)
    return len(modules)


def _blocks(model: nn.Module, mapped: ResidualMap) -> list[nn.Module]:
    """Return the outermost modules that are blocks and are called; none if some block is not such a module."""
    paths = {block.name.partition(":")[0] for block in mapped.blocks}
    called = None if mapped.flow is None else mapped.flow.called
    if "" in paths or not (called is None or paths <= set(called)):
        return []
    outermost = [path for path in paths if not any(path.startswith(f"{outer}.") for outer in paths)]
    return [model.get_submodule(path) for path in sorted(outermost)]


def _structure(module: nn.Module) -> str:
    """Return the text of a module with the shapes of its parameters."""
    shapes = [tuple(parameter.shape) for parameter in module.parameters()]
    return f"{module} {shapes}"
