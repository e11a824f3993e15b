"""Fully sharded data parallelism (FSDP2): each process keeps its part of weights, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from normless.residual import ResidualMap


class Sharded(ModelParallelStrategy):
    """Shard a network by `fully_shard`, with a parameter group for each block and another for the rest.

    Checkpoints have the format of one process: a file with whole tensors, from which any number of processes, sharded
    or not, can resume. `structure` is the map of the network that is set up next.
    """

    structure: ResidualMap

    def __init__(self, processes: int) -> None:
        super().__init__(self._shard, data_parallel_size=processes, tensor_parallel_size=1)

    def _shard(self, network: nn.Module, mesh: Any) -> Any:
        paths = {block.name.partition(":")[0] for block in self.structure.blocks} - {""}
        # Inner modules first: an outer group takes the remaining parameters.
        for path in sorted(paths, key=lambda path: -path.count(".")):
            fully_shard(network.get_submodule(path), mesh=mesh["data_parallel"], reshard_after_forward=True)
        return fully_shard(network, mesh=mesh["data_parallel"], reshard_after_forward=False)

    def save_checkpoint(self, path: Any, state: dict[str, Any], *_: Any, **__: Any) -> None:
        """Write the state with whole tensors in the first process."""
        whole = {name: _whole(item.state_dict()) if _is_stateful(item) else item for name, item in state.items()}
        if self.is_global_zero:
            torch.save(whole, path)

    def load_checkpoint(self, path: Any, state: Any = None, *_: Any, **__: Any) -> dict[str, Any]:
        """Restore the objects in `state` from a file with whole tensors; return the other entries of the file."""
        stored: dict[str, Any] = torch.load(Path(path), map_location="cpu", weights_only=True)
        for name, item in state.items():
            entry = stored.pop(name)
            if isinstance(item, nn.Module):
                own = item.state_dict()
                item.load_state_dict({key: _part(value, own.get(key)) for key, value in entry.items()})
            elif isinstance(item, torch.optim.Optimizer):
                parameters = [parameter for group in item.param_groups for parameter in group["params"]]
                parts = {
                    index: {part: _part(value, parameters[index]) for part, value in values.items()}
                    for index, values in entry["state"].items()
                }
                item.load_state_dict(entry | {"state": parts})
            else:
                state[name] = entry
        return stored


def _is_stateful(value: Any) -> bool:
    return isinstance(value, nn.Module | torch.optim.Optimizer)


def _whole(state: Any) -> Any:
    """Return a nested state with whole tensors; every process takes part."""
    return tree_map(lambda value: value.full_tensor().cpu() if isinstance(value, DTensor) else value, state)


def _part(value: Any, like: Any) -> Any:
    """Return this process's part of a tensor if `like` is sharded and of its shape; else the unchanged value."""
    if not (isinstance(like, DTensor) and isinstance(value, Tensor) and value.shape == like.shape):
        return value
    # Every process has read the whole tensor, so it is not sent.
    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


@contextmanager
def whole_weights(network: nn.Module) -> Iterator[None]:
    """Within the context, every process has all weights of the network, and passes do not need other processes."""
    parts = [module for module in network.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not network, recurse=False)
            part.reshard()
