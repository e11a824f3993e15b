"""Names that are certainly wrong are refused before torch is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from names_of_tables import names_of_tables

from normless.cli import main
from normless.cli.names import check_names

SCRIPT = """
import sys
from normless.cli import main
code = main(sys.argv[1:])
assert code == 2, code
assert "torch" not in sys.modules, "torch was imported"
"""
SWEEP = "name: s\nbase: {scheme: none, epochs: 1}\naxes:\n  scheme: [skipinit, fixop]\nrates: [0.1]\n"


def test_the_files_of_names_are_what_make_names_writes() -> None:
    written = {path: json.loads(path.read_text("utf-8")) for path in names_of_tables()}
    for path, tables in names_of_tables().items():
        for table, stated in tables.items():
            # Other tests may have registered entries of their own, in no module of ours.
            assert written[path][table] == stated, f"{table} of {path}: make names"
    assert {table for tables in written.values() for table in tables} == {"schemes", "models", "probes", "data"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --scheme fixop", "There is no scheme 'fixop'"),
        ("train --model normless:wide_resnt(depth=16)", "Did you mean wide_resnet?"),
        ("train --data digit", "Did you mean digits?"),
        ("probe normless:dense --probes signl", "Did you mean signal?"),
        ("convert normless:dense --scheme fixop(gain=0.1)+ZeroClassifier() --out nowhere", "Did you mean fixup?"),
        ("inspect normless:dnse", "Did you mean dense?"),
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
    ("words", "said"),
    [
        ("inspect torchvision:resnt18", "torchvision has no model 'resnt18'. Did you mean resnet18?"),
        ("train --model timm:resnt50", "timm has no model 'resnt50'. Did you mean resnet50?"),
        ("train-text --model transformers:bret", "transformers has no kind of model 'bret'. Did you mean bert?"),
        ("convert torchvison:resnet18 --scheme none --out nowhere", "Did you mean torchvision?"),
    ],
)
def test_a_misspelt_name_of_another_library_is_refused(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


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


def test_arguments_of_other_packages_commands_mean_what_they_mean_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def theirs(namespace: object) -> int:
        return 0

    theirs.__module__ = "other_package.commands"
    monkeypatch.setattr("normless.cli.convert.run", theirs)
    assert main(["convert", "normless:dense", "--scheme", "of-colours", "--out", "nowhere"]) == 0
    assert capsys.readouterr().err == ""


def test_settings_of_other_packages_runs_mean_what_they_mean_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("name: s", "name: s\nrun: no_such_package:COLOURS"))
    assert main(["sweep", "status", str(tmp_path / "sweep.yaml")]) == 2
    said = capsys.readouterr().err
    assert "no_such_package" in said
    assert "fixop" not in said
