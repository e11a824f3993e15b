"""The result of `nl.diagnose_trained`: findings, and a table by layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd

from normless._internal.html import html_table
from normless.diagnosis import Diagnosis
from normless.health.limits import QUANTITIES
from normless.spec import jsonable

# More rows than this are shortened in texts.
_MOST_ROWS = 60


@dataclass(frozen=True)
class Health(Diagnosis):
    """The checks of a trained network, their findings, and a table of what was measured of each layer.

    Attributes:
        table: a row for each layer and residual block in execution order, with the columns `layer`, `kind`, and the
            names of `normless.health.limits.QUANTITIES`; NaN where a quantity does not apply.
        passes: the number of forward passes that were made.
    """

    nothing: ClassVar[str] = "Nothing was found that is wrong with the network"
    aside: ClassVar[str] = "advice (the network computes well all the same):"
    table: pd.DataFrame = field(default_factory=pd.DataFrame)
    passes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the findings and the rows of the table, without missing values, as data for JSON."""
        rows = [{name: value for name, value in row.items() if pd.notna(value)} for row in self._rows()]
        return super().to_dict() | {"layers": jsonable(rows), "passes": self.passes}

    def __repr__(self) -> str:
        return f"Health({len(self.findings)} findings, {len(self.checks)} checks, {len(self.table)} layers)"

    def report(self, *, why: bool = True) -> str:
        """Return the findings and checks as `Diagnosis.report` does, and the table by layer."""
        return "\n".join([super().report(why=why), "", *self._lines()])

    def _repr_html_(self) -> str:
        shown = self._shown()
        rows = ([_cell(row[name]) for name in shown] for row in self._rows())
        return super()._repr_html_() + html_table("by layer", shown, rows)

    def _rows(self) -> list[dict[str, Any]]:
        return [{str(name): value for name, value in row.items()} for row in self.table.to_dict(orient="records")]

    def _shown(self) -> list[str]:
        """Return the columns with a value other than zero."""
        known = self.table.dropna(axis="columns", how="all")
        return [
            str(name) for name in known.columns if name not in QUANTITIES or bool((known[name].fillna(0) != 0).any())
        ]

    def _lines(self) -> list[str]:
        """Format the table; of many rows the first and last."""
        names = self._shown()
        cells = [names, *([_cell(row[name]) for name in names] for row in self._rows())]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(
                cell.rjust(width) if name in QUANTITIES else cell.ljust(width)
                for cell, width, name in zip(row, widths, names, strict=True)
            ).rstrip()
            for row in cells
        ]
        if len(lines) > _MOST_ROWS:
            left_out = f"… {len(lines) - _MOST_ROWS} rows, see .table"
            lines[_MOST_ROWS // 2 : len(lines) - _MOST_ROWS // 2] = [left_out]
        zero = [name for name in QUANTITIES if name not in names and self.table[name].notna().any()]
        return [*lines, *([f"0 in all layers: {', '.join(zero)}"] if zero else [])]


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else "–" if pd.isna(value) else f"{value:.3g}"
