"""Numbers of sharded weights (FSDP2, tensor parallelism), which all processes compute together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
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
        if self.mesh is None:
            return dict(parts)
        return self._together({name: part / self._copies(of[name]) for name, part in parts.items()}, "SUM")

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
        zero = torch.zeros((), device=self.mesh.device_type)
        counted = {"total": zero, "count": zero} if own is None else {"total": own, "count": torch.ones_like(own)}
        found = self._together(counted, "SUM")
        return found["total"] / found["count"] if found["count"].item() else None

    def root_mean_squares(self, sizes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return √E[y²] over the examples of all processes, of which each has as many."""
        if self.mesh is None:
            return dict(sizes)
        squares = {name: size.double().square() / self.mesh.size() for name, size in sizes.items()}
        return {name: square.sqrt() for name, square in self._together(squares, "SUM").items()}

    def largest(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the largest of the numbers of all processes."""
        return self._together(values, "MAX")

    def everywhere(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return masks that are true where those of all processes are."""
        return {name: mask.bool() for name, mask in self._together(masks, "MIN").items()}

    def _copies(self, tensor: Tensor) -> float:
        """Return the number of processes that hold each element of a tensor."""
        mesh: Any = getattr(tensor, "device_mesh", None)
        placed = enumerate(getattr(tensor, "placements", ()))
        parts = [int(mesh.size(axis)) for axis, place in placed if not place.is_replicate()]
        return float(self.mesh.size()) / prod(parts)

    def _together(self, values: Mapping[str, Tensor], operation: str) -> dict[str, Tensor]:
        """Reduce tensors over all processes of the mesh."""
        if self.mesh is None or not values:
            return dict(values)
        numbers = torch.cat([value.double().flatten() for value in values.values()])
        for axis in range(self.mesh.ndim):
            dist.all_reduce(numbers, getattr(dist.ReduceOp, operation), self.mesh.get_group(axis))
        parts = torch.split(numbers, [value.numel() for value in values.values()])
        return {name: part.view_as(values[name]) for name, part in zip(values, parts, strict=True)}


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
