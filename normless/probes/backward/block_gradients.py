"""The gradient of the loss on the skip path, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from torch import Tensor

from normless.probes.watching.watcher import Setting, Watcher
from normless.residual import ResidualBlock

COLUMNS = ("block", "name", "sum_norm", "gradient_norm", "relative_change")


@dataclass
class BlockGradients(Watcher):
    """‖x_l‖ and ‖∂L/∂x_l‖ of the sum x_l of every block, both over the whole batch, and their product.

    `relative_change` = ‖x_l‖·‖∂L/∂x_l‖ is to first order how much the loss (nats) can change when x_l changes by its
    own size: it does not depend on the units of x_l, and where all that follows is positively homogeneous it is at
    least the loss minus the entropy of the prediction (Zhang et al., theorem 1).
    """

    _rows: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Begin a table with a row for every outermost block."""
        self._rows = {block.name: {"block": i, "name": block.name} for i, block in enumerate(setting.map.blocks, 1)}

    def on_sum(self, block: ResidualBlock, skip: Tensor, branches: tuple[Tensor, ...], total: Tensor) -> None:
        """The norm of a sum."""
        if block.name in self._rows:
            self._rows[block.name]["sum_norm"] = float(total.double().norm())

    def on_sum_gradient(self, block: ResidualBlock, gradient: Tensor) -> None:
        """The norm of its gradient."""
        if block.name in self._rows:
            row = self._rows[block.name]
            row["gradient_norm"] = float(gradient.double().norm())
            row["relative_change"] = row["gradient_norm"] * row["sum_norm"]

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Take back what may have been told of another addition."""
        super().on_missed(block, reason)
        if block.name in self._rows:
            self._rows[block.name] = {key: self._rows[block.name][key] for key in ("block", "name")}

    def table(self) -> pd.DataFrame:
        """A row per block in execution order; the columns are `COLUMNS`."""
        return pd.DataFrame(list(self._rows.values()), columns=list(COLUMNS))
