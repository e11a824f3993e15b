"""The place where skip path and residual branch meet."""

from __future__ import annotations

from torch import Tensor, nn

from normless.nn.channels import per_channel


class ResidualSum(nn.Module):
    """The residual sum as a module: total = factor · (skip + branch), the plain sum unless an edit says more.

    The reference networks add through it, which gives edits of the sum one place and probes one hook that
    sees skip path, branch and total. Shapes: two tensors (B, C, …) to one.

    Attributes:
        factor: what the total is multiplied by, 1/√2 for the variance-keeping baseline.
        multiplier: a learnable factor on the branch, shape (1,) or one per channel (C,), for branches that
            end in something it cannot be folded into; None otherwise.
        norm_skip: a norm on the skip path before the addition, or None.
        norm_total: a norm behind the addition, or None.
    """

    multiplier: Tensor | None
    norm_skip: nn.Module | None
    norm_total: nn.Module | None

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1.0
        self.register_parameter("multiplier", None)
        self.register_module("norm_skip", None)
        self.register_module("norm_total", None)

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """Add the branch to the skip path."""
        if self.norm_skip is not None:
            skip = self.norm_skip(skip)
        if self.multiplier is not None:
            branch = branch * per_channel(self.multiplier, branch)
        total = skip + branch
        if self.factor != 1.0:
            total = total * self.factor
        return total if self.norm_total is None else self.norm_total(total)

    @property
    def is_plain(self) -> bool:
        """Whether the total is skip + branch and nothing else."""
        return self.factor == 1.0 and self.multiplier is None and self.norm_total is None

    def extra_repr(self) -> str:
        """The factor where it is not 1, and the multiplier where there is one."""
        parts = [] if self.factor == 1.0 else [f"factor={self.factor:.4g}"]
        return ", ".join(parts if self.multiplier is None else [*parts, "multiplier"])


class SkipOnlySum(ResidualSum):
    """The sum of a block whose branch was removed: the skip path alone."""

    def forward(self, skip: Tensor, branch: Tensor) -> Tensor:
        """Pass the skip path on."""
        return skip
