"""A network whose file changed after it was imported is not rewritten by the new text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module, invalidate_caches, reload
from pathlib import Path
from typing import Any

import pytest
import torch

import normless as nl

TEXT = """\
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(6), nn.Linear(6, 6)

    def forward(self, x):
        "A network of test {number}."

        def branch(x):
            return self.__kept(F.relu(self.layer(self.norm(x))))

        return x + branch(x)

    def __kept(self, x):
        return x


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 6), Block(), Block(), nn.Linear(6, 3))
"""
# What is replaced by what.
EDITS = {
    "another sum": ("x + branch(x)", "2 * x + branch(x)"),
    "another constant": ("return x + branch(x)", "return x + 1.0 * branch(x)"),
    "another layer": ("F.relu", "F.gelu"),
    "a line before it": ("class Block", "EPSILON = 1e-5\n\n\nclass Block"),
    "another class in its place": ("class Block", "class Other"),
    "no such class": (TEXT.partition("from torch import nn\n")[2], ""),
}
X = torch.randn(8, 6)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of its own text: the source of code that was rewritten before is kept with the code."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edited_network.py").write_text(TEXT.replace("{number}", tmp_path.name))
    invalidate_caches()
    yield import_module("edited_network")
    del sys.modules["edited_network"]


def change(module: Any, old: str, new: str) -> str:
    """Change the file; return its text before."""
    file = Path(module.__file__)
    text = file.read_text()
    numbered = old.replace("{number}", file.parent.name)
    assert numbered in text
    file.write_text(text.replace(numbered, new))
    return text


@pytest.mark.parametrize("edit", EDITS)
def test_changed_code_is_told(edit: str, module: Any) -> None:
    net = module.Net()
    text = change(module, *EDITS[edit])
    with pytest.raises(
        nl.errors.UnsupportedEditError, match=r"edited_network\.py changed since its forward was imported"
    ):
        nl.convert(net, "skipinit", X)
    # As a person does who reads the message.
    Path(module.__file__).write_text(text)
    assert nl.convert(net, "skipinit", X)(X).shape == (8, 3)


def test_code_that_is_imported_again_is_rewritten_and_comments_may_change(module: Any) -> None:
    change(module, *EDITS["a line before it"])
    invalidate_caches()
    net = reload(module).Net()
    change(module, "return x + branch(x)", "return x + branch(x)  # the sum")
    assert "multiplier" in str(nl.convert(net, "skipinit", X))
