"""`normless convert`, `probe` and `diagnose`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from command_outputs import check_output
from torch import optim

from normless.cli import main

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


WIDE = "normless:wide_resnet(depth=10, width=1)"
DEEP = "normless:dense(depth=24, width=50, in_features=50)"


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


@pytest.mark.slow
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

    monkeypatch.setattr("normless.doctor._diagnose.diagnose", note)
    assert main(["diagnose", CIFAR, "--batch-size", "2", "--optimizer", "AdamW(lr=1e-3, weight_decay=0.05)"]) == 2
    (optimizer,) = given
    assert type(optimizer) is optim.AdamW
    assert {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {(1e-3, 0.0), (1e-3, 0.05)}
