"""`normless convert`, `probe` and `diagnose`, and the status line."""

from __future__ import annotations

import io
import json
import re
import sys
from argparse import Namespace
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
import torch
from command_outputs import check_output
from torch import optim

import normless as nl
from normless.cli import main, status_line, working
from normless.models import resnet_cifar, wide_resnet

Capture = pytest.CaptureFixture[str]
CIFAR = "normless:resnet_cifar(depth=8)"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def said(capsys: Capture, *words: str) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*words, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    check_output(words[0], printed)
    return printed


def test_the_text_tells_the_edits_the_counts_and_the_files(tmp_path: Path, capsys: Capture) -> None:
    assert main(["convert", CIFAR, "--scheme", "skipinit", "--out", str(tmp_path / "net")]) == 0
    lines = capsys.readouterr().out.splitlines()
    before = sum(parameter.numel() for parameter in resnet_cifar(8).parameters())
    after = sum(parameter.numel() for parameter in nl.convert(resnet_cifar(8), "skipinit").parameters())
    scaled = " ".join(lines.pop(3).split())
    assert re.match(r"KeepScale\(weights='fresh'\) 7 weight × \d\.\d+: second moment 1 of its output; ", scaled)
    assert [" ".join(line.split()) for line in lines] == [
        "normless:resnet_cifar(depth=8, in_channels=3), converted by skipinit, input 2×3×32×32",
        "",
        "edit changes what",
        "RemoveNorms() 7 3 × batch norm 16 removed; 2 × batch norm 32 removed; 2 × batch norm 64 removed",
        "BranchMultiplier(init=0.0) 3 3 × multiplier at the end of the branch, initially 0",
        "",
        f"{before:,} parameters before, {after:,} after: 3 multipliers, 0 scalar biases",
        "norms left: none",
        "",
        f"wrote {tmp_path / 'net' / 'model.safetensors'}",
        f"wrote {tmp_path / 'net' / 'recipe.json'}",
    ]


TRAINED = """
import torch
from normless.models import resnet_cifar


def network():
    torch.manual_seed(0)
    net = resnet_cifar(8, in_channels=1)
    for name, value in net.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(value, 0.5, 2)
    for _ in range(10):
        net(torch.randn(8, 1, 8, 8))
    return net.eval(), torch.randn(6, 1, 8, 8)
"""


def test_a_trained_network_keeps_its_function(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "net.py").write_text(TRAINED)
    words = ["convert", f"{tmp_path / 'net.py'}:network", "--scheme", "group_norm(groups=4)", "--overwrite"]
    words += ["--out", str(tmp_path / "out"), "--trained"]
    for given in (["inputs"], ["digits", "--examples", "20"]):
        facts = said(capsys, *words, *given)["trained"]
        assert facts["distance"][1] < facts["distance"][0] / 2
        assert {norm["outcome"] for norm in facts["norms"]} == {"fitted"}
    assert main([*words, "inputs"]) == 0
    assert "outputs: distance" in capsys.readouterr().out
    assert main([*words, "digits", "--examples", "0"]) == 2
    assert "--examples" in capsys.readouterr().err


def test_inspect_says_what_a_folder_was_converted_by(tmp_path: Path, capsys: Capture) -> None:
    assert main(["convert", CIFAR, "--scheme", "fixup", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["inspect", str(tmp_path), "--eval"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{tmp_path}, converted by fixup, input 2×3×32×32, eval mode"
    assert not any("would change" in line for line in lines)
    assert main(["inspect", str(tmp_path), "--schemes", "skipinit"]) == 0
    assert "was converted by 'fixup' already" in capsys.readouterr().out
    assert main(["convert", str(tmp_path), "--scheme", "skipinit", "--out", str(tmp_path / "two")]) == 2
    assert "was converted by 'fixup' already" in capsys.readouterr().err
    assert not (tmp_path / "two").exists()
    assert said(capsys, "inspect", CIFAR, "--schemes")["converted_by"] is None


WIDE = "normless:wide_resnet(depth=10, width=1)"
DEEP = "normless:dense(depth=60, width=50, in_features=50)"


@pytest.mark.parametrize("columns", [60, 100])
def test_a_wide_table_comes_in_parts_and_no_word_is_broken(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    command = ["probe", WIDE, "--scheme", "skipinit", "--batch-size", "4", "--probes", "signal"]
    rows = said(capsys, *command)["tables"]["signal"]
    assert main(command) == 0
    printed = capsys.readouterr().out.partition("signal\n")[2]
    assert max(map(len, printed.splitlines())) <= columns
    parts = [part.splitlines() for part in printed.strip("\n").split("\n\n")]
    assert len(parts) > 1
    assert all(
        [line.split()[:2] for line in part[-3:]] == [[f"{i + 1}", f"blocks.{i}"] for i in range(3)] for part in parts
    )
    words = [word for part in parts for line in part[:-3] for word in line.split() if set(word) - {"─", "━"}]
    names = [name for name in rows[0] if name not in ("block", "name") and any(row[name] is not None for row in rows)]
    expected = [part for name in names for part in name.replace("_", "_ ").split()]
    assert sorted(word for word in words if word not in ("block", "name")) == sorted(expected)
    assert sum(len(part[-1].split()) - 2 for part in parts) == len(names)


def test_probe_measures_what_python_does(capsys: Capture) -> None:
    facts = said(capsys, "probe", WIDE, "--scheme", "skipinit", "--batch-size", "4", "--probes", "signal", "logits")
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


def test_diagnose_finds_growth_and_the_cure_works(capsys: Capture) -> None:
    facts = said(capsys, "diagnose", DEEP, "--scheme", "none", "--image", "1", "1", "50", "--apply")
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


DENSE = "normless:dense(depth=4, width=4)"
# What erases a line of a terminal.
ERASED = "\x1b[2K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()


def plain(terminal: Terminal) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())


def test_the_line_is_shown_and_erased(terminal: Terminal) -> None:
    with redirect_stderr(terminal), status_line("reading [bold]net"):
        assert "reading [bold]net …" in plain(terminal)
        assert ERASED not in terminal.getvalue().rpartition("reading")[2]
    assert ERASED in terminal.getvalue().rpartition("reading")[2]


@pytest.mark.parametrize("as_json", [True, False])
def test_what_user_code_prints_is_where_it_was(
    as_json: bool, terminal: Terminal, capsys: pytest.CaptureFixture[str]
) -> None:
    with redirect_stderr(terminal), working(Namespace(json=as_json), "reading"):
        sys.stdout.write("of the user\n")
    assert capsys.readouterr().out == ("" if as_json else "of the user\n")
    assert ("of the user\n" in plain(terminal)) == as_json


@pytest.mark.parametrize(
    ("words", "doing"),
    [
        (["inspect", DENSE, "--schemes"], "reading"),
        (["convert", DENSE, "--scheme", "none", "--out", "out"], "converting"),
        (["probe", DENSE, "--probes", "logits", "--batch-size", "4"], "measuring"),
        (["diagnose", DENSE, "--batch-size", "4"], "diagnosing"),
    ],
)
def test_commands_that_read_a_network_have_one(
    words: list[str], doing: str, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    with redirect_stderr(terminal):
        assert main([*words, "--json"]) == 0
    assert f"{doing} {DENSE} …" in plain(terminal)
    assert terminal.getvalue().rstrip("\n").endswith(ERASED)
    assert json.loads(capsys.readouterr().out)["model"].startswith("normless:dense")


@pytest.mark.parametrize(
    ("text", "kind", "settings"),
    [
        ("AdamW(lr=1e-3, weight_decay=0.05)", optim.AdamW, {"lr": 1e-3, "decays": {0.0, 0.05}}),
        ("SGD(lr=0.5, momentum=0.8, nesterov=True)", optim.SGD, {"lr": 0.5, "momentum": 0.8, "decays": {0.0}}),
        ("RAdam", optim.RAdam, {"lr": 1e-3, "decays": {0.0}}),
    ],
)
def test_an_optimizer_by_name_is_built_on_the_groups_of_the_policy(
    text: str, kind: type[optim.Optimizer], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[optim.Optimizer] = []

    def note(*_: object, optimizer: optim.Optimizer, **__: object) -> None:
        given.append(optimizer)
        raise ValueError("enough")

    monkeypatch.setattr("normless.diagnosis.diagnose", note)
    assert main(["diagnose", CIFAR, "--batch-size", "2", "--optimizer", text]) == 2
    (optimizer,) = given
    assert type(optimizer) is kind
    assert {group["weight_decay"] for group in optimizer.param_groups} == settings["decays"]
    rest = {name: value for name, value in settings.items() if name != "decays"}
    assert all(group.items() >= rest.items() for group in optimizer.param_groups)
