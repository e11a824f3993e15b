"""The gradient of the loss on the skip path, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from normless.probes.hooks.block_rows import BlockRows
from normless.residual import ResidualBlock

COLUMNS = ("block", "name", "sum_norm", "gradient_norm", "relative_change")


@dataclass
class BlockGradients(BlockRows):
    """‖x_l‖ and ‖∂L/∂x_l‖ of the sum x_l of every block, both over the whole batch, and their product.

    `relative_change` = ‖x_l‖·‖∂L/∂x_l‖ is to first order how much the loss (nats) can change when x_l changes by its
    own size: it does not depend on the units of x_l, and where all that follows is positively homogeneous it is at
    least the loss minus the entropy of the prediction (Zhang et al., theorem 1).
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """The norm of a sum."""
        if block.name in self.rows:
            self.rows[block.name]["sum_norm"] = float(total.double().norm())

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        """The norm of its gradient."""
        if block.name in self.rows:
            row = self.rows[block.name]
            row["gradient_norm"] = float(gradient.double().norm())
            row["relative_change"] = row["gradient_norm"] * row["sum_norm"]
