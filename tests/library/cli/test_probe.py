"""``normless probe`` and ``normless diagnose``: the same numbers as from Python, as tables, files and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
import torch
from command_outputs import check_output

import normless as nl
from normless.cli import main
from normless.models import wide_resnet

Capture = pytest.CaptureFixture[str]
WIDE = "normless:wide_resnet(depth=10, width=1)"
DEEP = "normless:dense(depth=60, width=50, in_features=50)"

TOKENS = """
import torch
from torch import nn

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.norm = nn.LayerNorm(4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids):
        h = self.table(ids)
        return self.head(h + self.mix(self.norm(h)))

def tagger():
    torch.manual_seed(0)
    return Tagger(), {"ids": torch.arange(10).reshape(2, 5) % 9}

def scores():
    return nn.Flatten(0), torch.ones(2, 4)
"""


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    (tmp_path / "tokens.py").write_text(TOKENS)
    return str(tmp_path / "tokens.py")


def json_of(capsys: Capture, *words: str) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*words, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    check_output(words[0], printed)
    return printed


@pytest.mark.parametrize("columns", [60, 100])
def test_a_wide_table_comes_in_parts_and_no_word_is_broken(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    command = ["probe", WIDE, "--scheme", "skipinit", "--batch-size", "4", "--probes", "signal"]
    rows = json_of(capsys, *command)["tables"]["signal"]
    assert main(command) == 0
    printed = capsys.readouterr().out.partition("signal\n")[2]
    assert max(map(len, printed.splitlines())) <= columns
    parts = printed.strip("\n").split("\n\n")
    assert len(parts) > 1
    words: list[str] = []
    values = 0
    for part in parts:
        lines = part.splitlines()
        *heads, _, _, _ = lines
        assert [line.split()[:2] for line in lines[-3:]] == [[str(i + 1), f"blocks.{i}"] for i in range(3)]
        words += [word for line in heads for word in line.split()]
        values += len(lines[-1].split()) - 2
    names = [name for name in rows[0] if name not in ("block", "name") and any(row[name] is not None for row in rows)]
    expected = [part for name in names for part in name.replace("_", "_ ").split()]
    assert sorted(word for word in words if word not in ("block", "name")) == sorted(expected)
    assert values == len(names)


def test_probe_measures_what_python_does(capsys: Capture) -> None:
    facts = json_of(
        capsys, "probe", WIDE, "--scheme", "skipinit", "--batch-size", "4", "--probes", "signal", "logits"
    )
    torch.manual_seed(0)
    inputs = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    targets = torch.randint(10, (4,), generator=torch.Generator().manual_seed(0))
    network = nl.convert(wide_resnet(10, 1), "skipinit")
    measured = nl.probe(network, (inputs, targets), ["signal", "logits"])
    assert facts["loss"] == pytest.approx(measured.loss, rel=1e-6)
    assert (facts["scheme"], facts["input"], facts["mode"]) == ("skipinit", [4, 3, 32, 32], "train")
    assert [row["name"] for row in facts["tables"]["signal"]] == list(measured.signal["name"])
    for row, expected in zip(facts["tables"]["signal"], measured.signal["skip_variance"], strict=True):
        assert row["skip_variance"] == pytest.approx(expected, rel=1e-6)
    assert len(facts["tables"]["logits"]) == 10


def test_probe_writes_tables_and_figures(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "probed"
    words = ["probe", WIDE, "--data", "digits", "--batch-size", "8", "--out", str(out)]
    assert main([*words, "--probes", "signal", "gradients", "logits", "activations"]) == 0
    output = capsys.readouterr().out
    assert "8 training examples of digits" in output
    assert "input 8×1×8×8" in output
    for name in ("signal", "gradients", "logits", "activations"):
        assert f"\n{name}\n" in output
        assert len(pd.read_csv(out / f"{name}.csv"))
        assert f"wrote {out / name}.csv" in output
    for name in ("signal", "logits", "activations"):
        assert ElementTree.parse(out / f"{name}.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["probe", WIDE, "--probes", "signals"], "There is no probe 'signals'. Did you mean signal? The probes are"),
        (["probe", WIDE, "--batch-size", "0"], "Expected --batch-size to be 1 or more, got 0"),
        (["probe", "TOKENS:scores"], "Expected logits of shape (…, classes) from Flatten, got (128,)"),
        (["diagnose", WIDE, "--data", "letters"], "There is no data set 'letters'"),
        (["diagnose", WIDE, "--scheme", "skipini"], "There is no scheme 'skipini'"),
        (["diagnose", WIDE, "--rate", "0.1", "--decay-policy", "some"], "There is no decay policy 'some'"),
    ],
)
def test_errors_are_sentences(words: list[str], problem: str, tokens: str, capsys: Capture) -> None:
    assert main([word.replace("TOKENS", tokens) for word in words]) != 0
    assert problem in capsys.readouterr().err


def test_diagnose_finds_growth_and_the_cure_works(capsys: Capture) -> None:
    facts = json_of(capsys, "diagnose", DEEP, "--scheme", "none", "--image", "1", "1", "50", "--apply")
    assert facts["findings"][0]["kind"] == "growing_variance"
    assert facts["findings"][0]["evidence"]["factor_per_block"] == pytest.approx(2, rel=0.15)
    assert facts["healthy"] is False
    assert facts["treatment"]["scheme"] == "skipinit"
    assert facts["treatment"]["after"]["healthy"] is True
    assert facts["scheme"] == "none"


def test_diagnose_fails_if_asked_to(capsys: Capture) -> None:
    words = ["diagnose", DEEP, "--scheme", "none", "--image", "1", "1", "50"]
    assert main(words) == 0
    assert "theory:" not in capsys.readouterr().out
    assert main([*words, "--strict", "--why"]) == 1
    assert "theory: Without normalization" in capsys.readouterr().out
    assert main(["diagnose", WIDE, "--data", "digits", "--strict"]) == 0
