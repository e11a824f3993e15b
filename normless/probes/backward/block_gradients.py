"""The gradient of the loss on the skip path, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from normless.probes.hooks.watcher import PROBES, BlockWatcher
from normless.residual import ResidualBlock

COLUMNS = ("block", "name", "sum_norm", "gradient_norm", "relative_change")


@PROBES.register("backward")
@dataclass
class BlockGradients(BlockWatcher):
    """Norms of every residual sum x_l and of its gradient ∂L/∂x_l, over the whole batch, and their product.

    `relative_change` = ‖x_l‖·‖∂L/∂x_l‖ bounds to first order the change of the loss (nats) under a change of x_l by
    its own size, in any units of x_l. It is at least the loss minus the entropy of the prediction if the layers after
    x_l are positively homogeneous (Zhang et al., theorem 1).
    """

    columns: ClassVar[tuple[str, ...]] = COLUMNS

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """Store the norm of a sum."""
        self.add(block.name, {"sum_norm": float(total.double().norm())})

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        """Store the norm of its gradient."""
        # The sum of a missed block is unknown.
        if "sum_norm" in self.rows.get(block.name, {}):
            norm = float(gradient.double().norm())
            self.add(block.name, {"gradient_norm": norm, "relative_change": norm * self.rows[block.name]["sum_norm"]})
