"""Edits of the residual sums."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from normless.edits.edit import EDITS, Edit, Surgery


@EDITS.register()
@dataclass(frozen=True)
class ScaleSums(Edit):
    """Every residual sum times a constant: (x + f(x)) · factor (Fixup, section 4.1; De & Smith, tables 3 and 4).

    With 1/√2 the variance stays constant over depth, but branch and skip path contribute equally.

    Args:
        factor: the constant.
    """

    factor: float = 1 / sqrt(2)

    def apply(self, surgery: Surgery) -> None:
        """Set the factor of every sum."""
        for block in surgery.blocks():
            surgery.sum(block).factor *= self.factor
            surgery.record(block.name, f"sum × {self.factor:.4g}")
