"""Networks in a file of the user: what the file imports from beside it, and objects that it holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from normless import models

build_model: Any = models.build_model
MINE = """
import torch
from hour_nets import width

def late():
    from hour_late import width
    return torch.nn.Linear(width, width)

def net():
    return torch.nn.Linear(width, width)

NET = net()
WIDTH = width
"""


def _written(folder: Path, width: int) -> Path:
    folder.mkdir()
    for name in ("hour_nets", "hour_late"):
        (folder / f"{name}.py").write_text(f"width = {width}\n")
    (folder / "mine.py").write_text(MINE)
    return folder / "mine.py"


@pytest.mark.parametrize("name", ["net", "late"])
def test_a_file_imports_its_neighbours_and_those_of_no_other_file(name: str, tmp_path: Path) -> None:
    before = list(sys.path)
    files = [_written(tmp_path / folder, width) for folder, width in (("a", 3), ("b", 5))]
    assert [build_model(f"{file}:{name}").weight.shape[0] for file in files] == [3, 5]
    assert sys.path == before


def test_a_network_in_a_file_is_copied(tmp_path: Path) -> None:
    file = _written(tmp_path / "a", 3)
    first, second = (build_model(f"{file}:NET") for _ in range(2))
    assert torch.equal(first.weight, second.weight)
    assert first.weight is not second.weight
    with pytest.raises(ValueError, match="width"):
        build_model(f"{file}:NET(width=3)")
    with pytest.raises(ValueError, match="WIDTH"):
        build_model(f"{file}:WIDTH")
