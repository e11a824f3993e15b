"""The result of `nl.diagnose_trained`: findings, and a table by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd

from normless.doctor.findings import Finding, in_order
from normless.doctor.report import Diagnosis
from normless.doctor.trained.limits import QUANTITIES
from normless.spec import jsonable

# More rows than this are shortened in texts.
_MOST_ROWS = 60


@dataclass(frozen=True)
class Health(Diagnosis):
    """The checks of a trained network, their findings, and a table of what was measured of each layer.

    Attributes:
        table: a row for each layer and residual block in execution order, with the columns `layer`, `kind`, and the
            names of `normless.doctor.trained.limits.QUANTITIES`; NaN where a quantity does not apply.
        passes: the number of forward passes that were made.
        order: the positions in execution of the places of findings.
    """

    nothing: ClassVar[str] = "Nothing was found that is wrong with the network"
    aside: ClassVar[str] = "advice (the network computes well all the same):"
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    passes: int = 0
    order: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings and the rows of the table, without missing values, as data for JSON."""
        rows = self.table.to_dict(orient="records")
        known = [{str(name): value for name, value in row.items() if pd.notna(value)} for row in rows]
        return super().to_dict() | {"layers": jsonable(known), "passes": self.passes}

    def _ranked(self) -> list[Finding]:
        return in_order((found for check in self.checks for found in check.findings), self.order)

    @property
    def _unseen(self) -> str:
        return "other data, how it was trained"

    def full(self, *, why: bool = True) -> str:
        """Return the findings and checks as `Diagnosis.full` does, and the table by layer."""
        shown, zero = self._shown()
        text = shown.to_string(index=False, na_rep="–", float_format="{:.3g}".format, max_rows=_MOST_ROWS)
        parts = [super().full(why=why), "", text] if len(shown) else [super().full(why=why)]
        return "\n".join([*parts, *([f"0 in all layers: {', '.join(zero)}"] if zero else [])])

    def _shown(self) -> tuple[pd.DataFrame, list[str]]:
        """Return the table without quantities that are zero in all layers, and the names of these."""
        measured = [name for name in QUANTITIES if name in self.table and self.table[name].notna().any()]
        zero = [name for name in measured if not self.table[name].fillna(0).any()]
        return self.table[["layer", "kind", *(name for name in measured if name not in zero)]], zero
