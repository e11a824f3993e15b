"""`normless diagnose NETWORK --trained`: answers, files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_outputs import check_output

from normless.cli import main

NETS = """import torch
from torch import nn


def dead():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    with torch.no_grad():
        net[1].bias[:12] = -1e4
    return net


def batches():
    return [(torch.randn(16, 1, 8, 8), torch.arange(16) % 10) for _ in range(3)]
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text(NETS)
    return tmp_path


def test_the_command_names_layers_and_draws_them(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    words = ["diagnose", "nets.py:dead", "--trained", "--inputs", "nets.py:batches", "--strict", "--json"]
    assert main([*words, "--figure", "figures/health.svg"]) == 1
    printed = json.loads(capsys.readouterr().out)
    check_output("diagnose", printed)
    found, *_ = printed["findings"]
    assert (found["kind"], found["where"], found["evidence"]["count"]) == ("dead_units", ["1"], 12)
    assert {row["layer"]: row["dead"] for row in printed["layers"] if "dead" in row} == {"1": 0.5}
    assert printed["checks"][1]["summary"].startswith("3 batches with 48 examples")
    assert "share of units that never vary" in (nets / "figures" / "health.svg").read_text("utf-8")
