"""The residual sum as a module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from normless.nn._in_place import InPlace
from normless.nn.kernels import multiplied


class ResidualSum(InPlace, nn.Module):
    """The residual sum, total = factor · (s · skip + b · branch), with norms and multipliers that edits may add.

    Shapes: two tensors (B, C, …) to one.

    Attributes:
        factor: a factor on the total, 1/√2 for the baseline that keeps the variance.
        skip_factor, branch_factor: the constants s and b; one of them is part of the addition.
        branch_rate, branch_epsilon: factors on the learning rate and on Adam's ε of parameters on the branch, for
            `normless.param_groups`.
        multiplier: a learnable factor on the branch, shape (1,) or (C,), if it cannot be folded into the branch's
            end, else None.
        norm_skip, norm_branch, norm_total: norms on the skip path, on the branch before the multiplier and after
            the addition, each or None.
    """

    multiplier: Tensor | None
    norm_skip: nn.Module | None
    norm_branch: nn.Module | None
    norm_total: nn.Module | None

    def __init__(self) -> None:
        super().__init__()
        self.factor = self.skip_factor = self.branch_factor = 1.0
        self.branch_rate = self.branch_epsilon = 1.0
        self.register_parameter("multiplier", None)
        for name in ("norm_skip", "norm_branch", "norm_total"):
            self.register_module(name, None)

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        if self.norm_skip is not None:
            skip = self.norm_skip(skip)
        if self.norm_branch is not None:
            branch = self.norm_branch(branch)
        if self.multiplier is not None:
            branch = multiplied(branch, self.multiplier)
        overwrites = self.inplace and skip.shape == branch.shape and skip.dtype == branch.dtype
        if self.skip_factor == 1.0:
            total = torch.add(skip, branch, alpha=self.branch_factor, out=branch if overwrites else None)
        else:
            scaled = branch if self.branch_factor == 1.0 else branch * self.branch_factor
            total = torch.add(scaled, skip, alpha=self.skip_factor, out=scaled if overwrites else None)
        if self.factor != 1.0:
            total = total * self.factor
        return total if self.norm_total is None else self.norm_total(total)

    @property
    def is_plain(self) -> bool:
        """Whether the total is skip + branch and nothing else."""
        factors = (self.factor, self.skip_factor, self.branch_factor)
        parts = (*self._parameters.values(), *self._modules.values())
        return factors == (1.0, 1.0, 1.0) and all(part is None for part in parts)

    def extra_repr(self) -> str:
        names = ("factor", "skip_factor", "branch_factor", "branch_rate", "branch_epsilon")
        parts = [f"{name}={getattr(self, name):.4g}" for name in names if getattr(self, name) != 1.0]
        return ", ".join([*parts, *(name for name, part in self._parameters.items() if part is not None)])


class SkipOnlySum(ResidualSum):
    """The sum of a block with a removed branch: the skip path alone."""

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        return skip
