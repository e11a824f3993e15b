"""`normless convert`, `probe` and `diagnose`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
import torch
from command_outputs import check_output
from torch import optim

import normless as nl
from normless.cli import main
from normless.models import wide_resnet

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
DEEP = "normless:dense(depth=24, width=50, in_features=50)"


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
    words = ["diagnose", DEEP, "--scheme", "none", "--image", "1", "1", "50", "--apply", "--strict", "--json"]
    assert main(words) == 1
    facts = json.loads(capsys.readouterr().out)
    check_output("diagnose", facts)
    assert facts["findings"][0]["kind"] == "growing_variance"
    assert facts["findings"][0]["evidence"]["factor_per_block"] == pytest.approx(2, rel=0.15)
    assert facts["healthy"] is False
    assert facts["treatment"]["scheme"] == "skipinit"
    assert facts["treatment"]["after"]["healthy"] is True
    assert facts["scheme"] == "none"


def test_an_optimizer_by_name_is_built_on_the_groups_of_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[optim.Optimizer] = []

    def note(*_: object, optimizer: optim.Optimizer, **__: object) -> None:
        given.append(optimizer)
        raise ValueError("enough")

    monkeypatch.setattr("normless.diagnosis.diagnose", note)
    assert main(["diagnose", CIFAR, "--batch-size", "2", "--optimizer", "AdamW(lr=1e-3, weight_decay=0.05)"]) == 2
    (optimizer,) = given
    assert type(optimizer) is optim.AdamW
    assert {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {(1e-3, 0.0), (1e-3, 0.05)}
