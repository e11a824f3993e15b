"""Measurements that give one row for every outermost block."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd

from normless.probes.hooks.watcher import Setting, Watcher
from normless.residual import ResidualBlock


@dataclass
class BlockRows(Watcher):
    """A watcher with a row for every outermost block, which its methods fill in; blocks inside others have none.

    Attributes:
        columns: of the table; what no method fills in is NaN.
        rows: by the name of the block.
    """

    columns: ClassVar[tuple[str, ...]] = ("block", "name")
    rows: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False)

    def on_start(self, setting: Setting) -> None:
        """Begin a table."""
        blocks = setting.map.blocks
        self.rows = {block.name: {"block": index, "name": block.name} for index, block in enumerate(blocks, 1)}

    def on_missed(self, block: ResidualBlock, reason: str) -> None:
        """Take back what may have been told of another addition."""
        super().on_missed(block, reason)
        if block.name in self.rows:
            self.rows[block.name] = {key: self.rows[block.name][key] for key in ("block", "name")}

    def table(self) -> pd.DataFrame:
        """A row per block in execution order; `block` counts from 1."""
        return pd.DataFrame(list(self.rows.values()), columns=list(self.columns))
