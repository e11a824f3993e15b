"""Tables of results in a terminal: as they are where there is room, turned where there is not."""

from __future__ import annotations

from normless_lab.plots.page import Column, Table
from normless_papers.cli.text import tabular

NAMES = ["model", "accuracy, published", "accuracy, measured", "deviation"]
COLUMNS = [Column(name, numeric=name != "model") for name in NAMES]
ROWS = [["small", "83.5", "51.1", "0.4"], ["medium", "82.9", "–", "–"], ["large", "82.0", "50.2", "–"]]
TABLE = Table("Published beside measured", COLUMNS, ROWS)


def test_a_table_that_fits_keeps_its_rows() -> None:
    lines = tabular(TABLE, 80).splitlines()
    assert lines[0].split("  ")[0] == "model"
    assert [line.split()[0] for line in lines[1:]] == ["small", "medium", "large"]
    assert lines[2].split() == ["medium", "82.9", "–", "–"]


def test_a_wide_table_is_turned_and_counts_what_is_only_published() -> None:
    assert tabular(TABLE, 38).splitlines() == [
        "                     small  large",
        "accuracy, published   83.5   82.0",
        "accuracy, measured    51.1   50.2",
        "deviation              0.4      –",
        "",
        "Published and not measured: 1 more.",
    ]


def test_rows_without_room_beside_each_other_come_below_each_other() -> None:
    assert tabular(TABLE, 30).splitlines()[:8] == [
        "                     small",
        "accuracy, published   83.5",
        "accuracy, measured    51.1",
        "deviation              0.4",
        "",
        "                     large",
        "accuracy, published   82.0",
        "accuracy, measured    50.2",
    ]
