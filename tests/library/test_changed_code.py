"""A saved network whose model's or scheme's code changed since then is loaded with a warning."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

import normless as nl
from normless.models.spec import build_model

CODE = (
    "from helper import width\nfrom normless.models import dense\nfrom normless.schemes import skipinit\n"
    "def net():\n    return dense(depth=2, width=width, in_features=4)\n"
    "def own():\n    return skipinit()\n"
)
PLAIN = "normless:dense(depth=2, width=8, in_features=4)"
INPUTS = torch.ones(2, 4)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "helper.py").write_text("width = 8\n")
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "mine.py"


@pytest.mark.parametrize(("model", "scheme"), [("mine.py:net", "skipinit"), (PLAIN, "mine.py:own")])
@pytest.mark.parametrize("changes", ["mine.py", "helper.py"])
def test_changed_code_is_told(model: str, scheme: str, changes: str, mine: Path) -> None:
    nl.save(nl.convert(build_model(model), scheme, INPUTS), "net", model)
    assert "/" not in json.loads(Path("net/recipe.json").read_text())["code"].popitem()[0].removeprefix("../")
    with warnings.catch_warnings(action="error"):
        nl.load("net")
    mine.with_name(changes).write_text(mine.with_name(changes).read_text() + "# changed\n")
    with pytest.warns(nl.errors.ChangedCodeWarning, match=r"mine\.py changed since the network in net was saved"):
        nl.load("net")


def test_recipes_of_an_earlier_version_are_read(mine: Path) -> None:
    nl.save(nl.convert(build_model(PLAIN), "skipinit", INPUTS), "net", PLAIN)
    recipe = Path("net/recipe.json")
    values = json.loads(recipe.read_text())
    assert values.pop("code") == {}
    recipe.write_text(json.dumps(values | {"format": 2}))
    nl.load("net")
