"""`normless inspect`, and the inspection of a network that it prints."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from command_outputs import check_output
from gallery import ROWS
from matrix.case import changed, state_of
from PIL import Image

import normless as nl
from normless import residual_map
from normless.cli import main
from normless.cli.inspection import GroupSize, inspect_network
from normless.edits import Edit, Surgery
from normless.models import resnet_cifar, wide_resnet
from normless.recording import Tape, recorded
from normless.schemes import SCHEMES, Scheme

Capture = pytest.CaptureFixture[str]

MINE = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.norm = nn.LayerNorm(4)
        self.mix = nn.Linear(4, 4)

    def forward(self, ids, mask=None):
        h = self.table(ids)
        f = self.mix(self.norm(h))
        return h + (f if mask is None else f * mask)

def words(by_name=False):
    print("a word from the file")
    ids, mask = torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5, 1)
    return Words().eval(), {"ids": ids, "mask": mask} if by_name else (ids, mask)

class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.addcmul(x, x.sigmoid(), self.layer(x).relu())

def fused():
    return nn.Sequential(nn.Linear(4, 4), Fused()), torch.ones(2, 4)
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def _json(capsys: Capture, *words: str) -> dict:  # type: ignore[type-arg]
    assert main(["inspect", *words, "--json"]) == 0
    printed: dict = json.loads(capsys.readouterr().out)  # type: ignore[type-arg]
    check_output("inspect", printed)
    return printed


def test_the_text_tells_blocks_totals_parameters_schemes_and_what_is_open(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["inspect", "normless:wide_resnet(depth=16, width=1)"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [line.split() for line in lines]
    assert lines[0] == "normless:wide_resnet(depth=16, width=1), input 2×3×32×32, train mode"
    assert [row[:2] for row in words[4:10]] == [[str(index + 1), f"blocks.{index}"] for index in range(6)]
    assert "L = 6 residual blocks: 6 with m = 2" in lines
    assert "identity skip paths: 4 of 6" in lines
    assert "16 weight layers, 13 norms: 6 last, 2 down, 5 other" in lines
    assert "γ: last at the end of a branch, down on a skip path, other elsewhere" in lines
    # γ of the two shared pre-activations: 16 and 32 channels.
    assert ["gamma_down", "2", "48", "no"] in words
    assert ["fixup"] in [row[:1] for row in words]
    assert [row[0] for row in words if row and row[0] in SCHEMES] == list(SCHEMES)
    assert ["skipinit", "15", "KeepScale,", "13", "RemoveNorms,", "6", "BranchMultiplier"] in words
    assert any(line.startswith("zero_gamma") and "is not possible at blocks.0" in line for line in lines)
    assert lines[-1] == "unresolved: nothing"


def test_json_is_the_map_with_totals_and_schemes(capsys: Capture) -> None:
    model = "normless:resnet_cifar(depth=8)"
    printed = _json(capsys, model)
    expected = json.loads(json.dumps(residual_map(resnet_cifar(8)).to_dict()))
    assert {key: printed[key] for key in expected} == expected
    assert {"model", "depth", "blocks", "norms", "unresolved"} <= set(printed)
    assert set(printed["blocks"][0]) >= {"name", "branch", "skip", "identity_skip", "norms", "m", "inner"}
    assert (printed["model"], printed["input"], printed["mode"]) == (model, [2, 3, 32, 32], "train")
    assert set(printed["schemes"]) == set(SCHEMES)


@pytest.mark.parametrize(
    ("call", "shapes", "told"),
    [
        ("words", [[2, 5], [2, 5, 1]], "input 2×5, 2×5×1"),
        ("words(by_name=True)", {"ids": [2, 5], "mask": [2, 5, 1]}, "ids 2×5, mask 2×5×1"),
    ],
)
def test_a_file_brings_its_own_inputs_and_what_it_prints_is_no_json(
    call: str, shapes: object, told: str, mine: str, capsys: Capture
) -> None:
    printed = _json(capsys, f"{mine}:{call}", "--schemes", "none")
    assert printed["input"] == shapes
    assert printed["mode"] == "eval"
    assert [block["branch"] for block in printed["blocks"]] == [["mix"]]
    assert printed["norms"] == {"norm": "last"}
    assert main(["inspect", f"{mine}:{call}", "--schemes"]) == 0
    assert f"mine.py:{call}, {told}, eval mode" in capsys.readouterr().out


def test_what_could_not_be_placed_is_told_with_its_reason(mine: str, capsys: Capture) -> None:
    (left,) = _json(capsys, f"{mine}:fused", "--schemes")["unresolved"]
    assert left["path"] == "1"
    assert "adds and multiplies at once" in left["reason"]
    assert main(["inspect", f"{mine}:fused", "--schemes"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["unresolved", f"  1: {left['reason']}"]


def test_figures_are_written_as_what_they_are_called(tmp_path: Path, capsys: Capture) -> None:
    for name in ("new/out.svg", "out.png", "out.pdf"):
        path = tmp_path / name
        assert main(["inspect", "normless:resnet_cifar(depth=8)", "--schemes", "--figure", str(path)]) == 0
        assert capsys.readouterr().out.endswith(f"\nwrote {path}\n")
    assert "blocks.2" in "".join(ElementTree.fromstring((tmp_path / "new/out.svg").read_text("utf-8")).itertext())
    with Image.open(tmp_path / "out.png") as image:
        assert image.width > 1000
    assert (tmp_path / "out.pdf").read_bytes().startswith(b"%PDF")


def test_groups_have_the_sizes_of_the_papers_network() -> None:
    """He et al.'s ResNet-20 by hand: 3·3·(3·16 + 6·16² + 16·32 + 5·32² + 32·64 + 5·64²) + 640 weights."""
    found = inspect_network(resnet_cifar(20), schemes=())
    channels = [16] * 6 + [32] * 6 + [64] * 6
    weights = 9 * (3 * 16 + 6 * 16**2 + 16 * 32 + 5 * 32**2 + 32 * 64 + 5 * 64**2) + 640
    last = sum(channels) // 2
    assert found.groups == (
        GroupSize("weights", 20, weights, True),
        GroupSize("gamma_last", 9, last, True),
        GroupSize("gamma_stem", 1, 16, False),
        GroupSize("gamma_other", 9, last, True),
        GroupSize("biases", 20, 16 + sum(channels) + 10, False),
    )
    assert sum(group.parameters for group in found.groups) == 269_722


def test_frozen_parameters_are_a_group_of_their_own() -> None:
    model = wide_resnet(10, 1)
    model.stem.weight.requires_grad_(False)
    assert inspect_network(model, schemes=()).groups[-1] == GroupSize("frozen", 1, 3 * 16 * 9, False)


def test_every_scheme_has_the_plan_or_the_reason_that_plan_gives() -> None:
    model, images = wide_resnet(10, 1), torch.randn(4, 3, 8, 8)
    found = inspect_network(model, images)
    assert [item.scheme for item in found.schemes] == [name for name in SCHEMES if name != "trained"]
    for item in found.schemes:
        if item.reason is None:
            assert item.by_edit == Counter(change.edit for change in nl.plan(model, item.scheme, images))
        else:
            assert item.changes == ()
            with pytest.raises(nl.UnsupportedEditError) as refused:
                nl.plan(model, item.scheme, images)
            assert item.reason == str(refused.value)


def test_a_network_is_traced_once_and_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def counted(*given: Any) -> Tape:
        traced.append(given)
        return recorded(*given)

    monkeypatch.setattr("normless.residual.reader.recorded", counted)
    model, (x,) = ROWS["TabularResNet"].network().eval(), ROWS["TabularResNet"].example()[0]
    before = state_of(model)
    found = inspect_network(model, x)
    assert len(traced) == 1
    # Schemes that draw weights take random numbers.
    assert set(changed(before, state_of(model))) <= {"torch's random state"}
    assert not any(module.training for module in model.modules())
    plans = {item.scheme: item for item in found.schemes}
    without = {"KeepScale(weights='fresh')": 1, "RemoveNorms()": 3}
    assert plans["none"].by_edit == without
    assert plans["skipinit"].by_edit == without | {"BranchMultiplier(init=0.0)": 2}
    assert plans["sqrt2"].by_edit == without | {"ScaleSums(factor=0.7071067811865475)": 2}
    assert "deepnorm" in str(plans["deepnorm"].reason).lower()


def test_one_scheme_that_breaks_does_not_take_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Edit):
        def apply(self, surgery: Surgery) -> None:
            raise AttributeError("no such thing")

    monkeypatch.setattr(
        "normless.cli.inspection.scheme", lambda text: Scheme(text, (Broken(),) if text == "broken" else ())
    )
    broken, whole = inspect_network(wide_resnet(10, 1), schemes=["broken", "whole"]).schemes
    assert whole.reason is None
    assert "An edit of broken fails on this WideResNet" in str(broken.reason)
    assert "AttributeError: no such thing" in str(broken.reason)
