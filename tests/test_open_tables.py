"""Schemes, edits and models of others: from a file, a module, an entry point; converted, saved, loaded, listed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from command_outputs import check_output
from torch import nn

import normless as nl
from normless.cli import main
from normless.conversion import scheme_of
from normless.edits import EDITS
from normless.models import MODELS, build_model
from normless.probes import PROBES
from normless.registry import Registry
from normless.schemes import SCHEMES
from normless_lab.data import DATA
from normless_papers.artefact import ARTEFACTS

CIFAR = "normless:resnet_cifar(depth=8)"
IMAGES = torch.randn(2, 3, 8, 8)

MINE = """
from dataclasses import dataclass
from torch import nn
import normless as nl
from normless.edits import RemoveNorms, ScaleSums
from normless.models import resnet_cifar

@dataclass(frozen=True)
class Shift(nl.edits.Edit):
    '''The classifier's bias becomes a constant (Doe 2030).'''
    by: float = 1.0

    def apply(self, surgery):
        nn.init.constant_(surgery.get(surgery.map.classifier).bias, self.by)
        surgery.record(surgery.map.classifier, f"bias = {self.by}")

def scaled(factor: float = 0.5):
    '''No norms, every sum times a factor (Doe 2030, section 2).'''
    return RemoveNorms(), ScaleSums(factor)

def wrong():
    return "none"

def small(classes: int = 10):
    '''A network of eight layers.'''
    return resnet_cifar(8, classes)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plus and brackets in its name, a file of definitions in it, and the place to work in."""
    place = tmp_path / "c++ (1)"
    place.mkdir()
    (place / "mine.py").write_text(MINE)
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution `doe` whose entry points name the definitions of its module `doe_schemes`."""
    (tmp_path / "doe_schemes.py").write_text(MINE)
    info = tmp_path / "doe-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doe\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[normless.schemes]\ndoe = doe_schemes:scaled\nxavier = doe_schemes:scaled\n"
        "[normless.edits]\nDoeShift = doe_schemes:Shift\n"
        "[normless.models]\ndoe_small = doe_schemes:small\n"
        "[normless.probes]\nneedy = needy:Probe [papers]\n"
    )
    (tmp_path / "needy.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    for registry in (SCHEMES, EDITS, MODELS, PROBES):
        fresh = Registry[Any](registry.kind)
        monkeypatch.setitem(vars(registry), "_points", fresh._points)
        monkeypatch.setitem(vars(registry), "_own", dict(registry._own))
    return tmp_path


def saved_and_loaded(net: nn.Module, folder: Path, model: str = CIFAR) -> nn.Module:
    nl.save(net, folder / "saved", model, example_inputs=IMAGES)
    here = Path.cwd()
    os.chdir(folder.parent)
    try:
        return nl.load(folder / "saved")
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    "text",
    [
        "mine.py:scaled(factor=0.25)",
        "mine.py:scaled(factor=2) + HeadDropout(probability=0.2) + mine.py:Shift()",
    ],
)
def test_definitions_of_a_file_convert_save_and_load(text: str, folder: Path) -> None:
    net = nl.convert(build_model(CIFAR), text, IMAGES)
    absolute = text.replace("mine.py", f"{folder}/mine.py")
    assert scheme_of(net) == absolute
    assert [str(change) for change in nl.plan(build_model(CIFAR), text, IMAGES)]
    loaded = saved_and_loaded(net, folder)
    assert scheme_of(loaded) == absolute
    assert torch.equal(loaded.eval()(IMAGES), net.eval()(IMAGES))


def test_entry_points_are_names_like_ours(installed: Path) -> None:
    net = nl.convert(build_model("normless:doe_small"), "doe(factor=0.25) + DoeShift(by=2)", IMAGES)
    assert scheme_of(net) == "doe(factor=0.25) + DoeShift(by=2)"
    assert nl.scheme("none").extended(EDITS["DoeShift"](2.0)).text == "none + DoeShift(by=2.0)"
    loaded = saved_and_loaded(net, installed, "normless:doe_small")
    assert torch.equal(loaded(IMAGES), net(IMAGES))
    assert build_model("doe_schemes:small(classes=3)")(IMAGES).shape == (2, 3)
    (described,) = [one for one in EDITS.describe() if one.name == "DoeShift"]
    assert (described.summary, described.origin) == ("The classifier's bias becomes a constant (Doe 2030).", "doe")
    (described,) = [one for one in PROBES.describe() if one.name == "needy"]
    assert "needs no_such_library, not installed here: pip install 'normless[papers]'." in described.summary


def test_a_name_that_is_taken_is_refused(installed: Path) -> None:
    with pytest.raises(ValueError, match="The scheme 'xavier' is registered twice, by doe too"):
        nl.scheme("xavier")
    with pytest.raises(ValueError, match="There is a scheme 'fixup' already; choose another name"):
        nl.SCHEMES.register("fixup")(lambda: ())
    assert nl.scheme("fixup").edits


def test_list_prints_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "schemes", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    check_output("list", printed)
    assert [one["name"] for one in printed["schemes"]] == list(nl.SCHEMES)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = (*nl.SCHEMES, *nl.edits.EDITS, *MODELS, *PROBES, *DATA, *ARTEFACTS)
    assert [name for name in names if not any(line.startswith(f"{name} ") for line in lines)] == []
