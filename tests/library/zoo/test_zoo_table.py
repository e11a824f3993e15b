"""The script that writes docs/zoo.md, on two of its networks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "zoo.py"


@pytest.mark.zoo
def test_a_row_per_network(tmp_path: Path) -> None:
    out = tmp_path / "zoo.md"
    subprocess.run([sys.executable, SCRIPT, out, "res2next50", "test_vit"], check=True, capture_output=True)
    written = out.read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written.splitlines() if line[:1] == "|"]
    # 4 of 16 blocks project; inside the other 12 two sums add neighbouring channels, which is no identity skip. Each
    # block has 5 norms, one of them last, and so are those of the sums inside.
    assert rows[2][:-1] == ["res2net", "res2next50", "16 + 24", "12", "40", "4", "1", "40", "0"]
    assert rows[3][:-1] == ["vision_transformer", "test_vit", "12", "12", "12", "0", "0", "1", "0"]
    assert all(float(row[-1]) > 0 for row in rows[2:])
    assert f"torch {torch.__version__}" in written
