"""Numbers of sharded weights (FSDP2, tensor parallelism), which all processes compute together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Shards:
    """The processes that hold parts of a network's weights; without a mesh, this process holds all of them.

    The methods return the same numbers in every process, so that all processes decide alike what to do next.

    Attributes:
        mesh: the largest device mesh (a `DeviceMesh`) of the parameters, or None.
    """

    mesh: Any = None

    @classmethod
    def of(cls, model: nn.Module) -> Shards:
        """Return the shards of a network."""
        meshes = [mesh for own in model.parameters() if (mesh := getattr(own, "device_mesh", None)) is not None]
        return cls(max(meshes, key=lambda mesh: mesh.size(), default=None))

    def sums(self, parts: Mapping[str, Tensor], of: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return sums over whole tensors from those over the local parts of the tensors `of` these names."""
        if self.mesh is None or not parts:
            return dict(parts)
        shared = [part / self._copies(of[name]) for name, part in parts.items()]
        return dict(zip(parts, self._reduced(torch.stack(shared), "SUM"), strict=True))

    def norms(self, parts: Mapping[str, Tensor], of: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return Euclidean norms of whole tensors from those of the local parts."""
        if self.mesh is None:
            return dict(parts)
        # The square of a small or large norm has no float32.
        squares = self.sums({name: norm.double().square() for name, norm in parts.items()}, of)
        return {name: square.sqrt() for name, square in squares.items()}

    def mean(self, values: Sequence[Tensor]) -> Tensor | None:
        """Return the mean of numbers of all processes; None if no process has one."""
        own = torch.stack([*values]).mean() if values else None
        if self.mesh is None:
            return own
        counted = (
            torch.zeros(2, device=self.mesh.device_type) if own is None else torch.stack([own, own.new_ones(())])
        )
        total, processes = self._reduced(counted, "SUM")
        return total / processes if processes.item() else None

    def root_mean_squares(self, sizes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return √E[y²] over the examples of all processes, of which each has as many."""
        if self.mesh is None or not sizes:
            return dict(sizes)
        squares = torch.stack([*sizes.values()]).double().square() / self.mesh.size()
        return dict(zip(sizes, self._reduced(squares, "SUM").sqrt(), strict=True))

    def largest(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the largest of the numbers of all processes."""
        if self.mesh is None or not values:
            return dict(values)
        return dict(zip(values, self._reduced(torch.stack([*values.values()]), "MAX"), strict=True))

    def everywhere(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return masks that are true where those of all processes are."""
        if self.mesh is None or not masks:
            return dict(masks)
        joined = self._reduced(torch.cat([mask.flatten() for mask in masks.values()]), "MIN")
        parts = torch.split(joined, [mask.numel() for mask in masks.values()])
        return {name: part.bool().view_as(masks[name]) for name, part in zip(masks, parts, strict=True)}

    def _copies(self, tensor: Tensor) -> float:
        """Return the number of processes that hold each element of a tensor."""
        placements = getattr(tensor, "placements", ())
        parts = 1
        for axis, placement in enumerate(placements):
            parts *= 1 if placement.is_replicate() else tensor.device_mesh.size(axis)  # type: ignore[attr-defined]
        return float(self.mesh.size()) / parts

    def _reduced(self, numbers: Tensor, operation: str) -> Tensor:
        """Reduce numbers over all processes of the mesh."""
        numbers = numbers.double().contiguous()
        for axis in range(self.mesh.ndim):
            dist.all_reduce(numbers, getattr(dist.ReduceOp, operation), self.mesh.get_group(axis))
        return numbers


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a sharded tensor, or a tensor that is not sharded."""
    to_local = getattr(tensor, "to_local", None)
    part: Tensor = tensor if to_local is None else to_local()
    return part


def reshard(model: nn.Module) -> None:
    """Free the whole weights that a pass has gathered; the next pass would use them after the optimizer's step."""
    for module in model.modules():
        if hasattr(module, "unshard") and callable(again := getattr(module, "reshard", None)):
            again()
