"""Names that are certainly wrong are refused before torch is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from normless.cli.names import TABLES, check_names, names_of
from normless.data import DATA
from normless.models import MODELS
from normless.probes import PROBES
from normless.registry import Registry
from normless.schemes import SCHEMES

REGISTRIES = {"scheme": SCHEMES, "model": MODELS, "data": DATA, "probes": PROBES}
SCRIPT = """
import sys
from normless.cli import main
code = main(sys.argv[1:])
assert code == 2, code
assert "torch" not in sys.modules, "torch was imported"
"""
SWEEP = "name: s\nbase: {scheme: none, epochs: 1}\naxes:\n  scheme: [skipinit, fixop]\nrates: [0.1]\n"


@pytest.mark.parametrize("argument", TABLES)
def test_the_names_are_those_of_the_registry(argument: str) -> None:
    registry: Registry[object] = REGISTRIES[argument]
    names = names_of(argument)
    own = {name for name, one in registry._own.items() if one.__module__.startswith(("normless.", "normless_papers"))}
    # Other tests may have registered entries of their own.
    assert own <= set(names)
    assert set(names) <= set(registry)
    assert (names.kind, names.plural) == (registry.kind, registry.plural)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --scheme fixop", "There is no scheme 'fixop'"),
        ("train --model normless:wide_resnt(depth=16)", "Did you mean wide_resnet?"),
        ("demo --schemes none skipinti", "Did you mean skipinit?"),
        ("train --data digit", "Did you mean digits?"),
        ("probe normless:dense --probes signl", "Did you mean signal?"),
        ("convert normless:dense --scheme fixop(gain=0.1)+ZeroClassifier() --out nowhere", "Did you mean fixup?"),
        ("inspect normless:dnse", "Did you mean dense?"),
        ("inspect torchvision:resnt18", "torchvision has no model 'resnt18'. Did you mean resnet18?"),
        ("train --model timm:resnt50", "timm has no model 'resnt50'. Did you mean resnet50?"),
        ("train-text --model transformers:bret", "transformers has no kind of model 'bret'. Did you mean bert?"),
        ("convert torchvison:resnet18 --scheme none --out nowhere", "Did you mean torchvision?"),
        ("diagnose normless:dense --scheme non", "Did you mean none?"),
        ("reproduce fixup/tabel-1", "Did you mean fixup/table-1"),
        ("sweep run sweep.yaml", "Did you mean fixup?"),
        ("sweep status sweep.yaml", "Did you mean fixup?"),
        ("inspekt normless:dense", "Did you mean inspect?"),
        ("list shcemes", "Did you mean schemes?"),
    ],
)
def test_a_misspelt_name_is_refused_without_torch(words: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words.split()], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("normless: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.yaml"]


@pytest.mark.parametrize(
    "arguments",
    [
        {"scheme": "mine.py:fixop"},
        {"scheme": " fixup (gain=0.1) + mine.py:Edit()"},
        {"scheme": None, "model": "folder/of/a/saved/network"},
        {"scheme": "fixop("},
        {"model": "timm:dnse", "data": "my.module:dgits"},
        {"networks": ["torchvision:resnet18", "normless:dense(depth=3)"], "probes": ["signal", "stream"]},
        {"rate": "fixop", "schemes": [1, None], "data": {"x": 1}},
    ],
)
def test_what_may_be_right_is_left_to_the_registry(arguments: dict[str, object]) -> None:
    check_names(arguments)


def test_every_network_of_a_library_is_left_to_it() -> None:
    timm, torchvision = pytest.importorskip("timm"), pytest.importorskip("torchvision")
    for name in timm.list_models()[::40]:
        check_names({"model": f"timm:{name}(num_classes=10)"})
    for name in torchvision.models.list_models():
        check_names({"model": f"torchvision:{name}"})
