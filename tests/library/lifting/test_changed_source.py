"""A network whose file changed after it was imported is not rewritten by the new text."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module, invalidate_caches, reload
from pathlib import Path
from types import ModuleType

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
EDITS: dict[str, Callable[[str], str]] = {
    "another sum": lambda text: text.replace("x + branch(x)", "2 * x + branch(x)"),
    "another constant": lambda text: text.replace("return x + branch(x)", "return x + 1.0 * branch(x)"),
    "another layer": lambda text: text.replace("F.relu", "F.gelu"),
    "a line before it": lambda text: text.replace("class Block", "EPSILON = 1e-5\n\n\nclass Block"),
    "another class in its place": lambda text: text.replace("class Block", "class Other"),
    "no such class": lambda text: "from torch import nn\n",
}
X = torch.randn(8, 6)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of its own text: the source of code that was rewritten before is kept with the code."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "edited_network.py").write_text(TEXT.replace("{number}", tmp_path.name))
    invalidate_caches()
    yield import_module("edited_network")
    del sys.modules["edited_network"]


@pytest.mark.parametrize("edit", EDITS)
def test_changed_code_is_told(edit: str, module: ModuleType) -> None:
    net, file = module.Net(), Path(str(module.__file__))
    text = file.read_text()
    file.write_text(EDITS[edit](text))
    with pytest.raises(nl.UnsupportedEditError, match=r"edited_network\.py changed since its forward was imported"):
        nl.convert(net, "skipinit", X)
    # As a person does who reads the message.
    file.write_text(text)
    assert nl.convert(net, "skipinit", X)(X).shape == (8, 3)


def test_code_that_is_imported_again_is_rewritten(module: ModuleType) -> None:
    file = Path(str(module.__file__))
    file.write_text(EDITS["a line before it"](file.read_text()))
    invalidate_caches()
    net = nl.convert(reload(module).Net(), "skipinit", X)
    assert re.search("multiplier", str(net))


def test_text_that_is_no_code_may_change(module: ModuleType) -> None:
    file = Path(str(module.__file__))
    file.write_text(file.read_text().replace("return x + branch(x)", "return x + branch(x)  # the sum"))
    nl.convert(module.Net(), "skipinit", X)


def test_code_that_was_rewritten_before_keeps_its_source(module: ModuleType) -> None:
    net, file = module.Net(), Path(str(module.__file__))
    first = nl.convert(net, "skipinit", X).eval()
    file.write_text(EDITS["another sum"](file.read_text()))
    assert torch.equal(nl.convert(net, "skipinit", X).eval()(X), first(X))
