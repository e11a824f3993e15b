"""`normless diagnose` in continuous integration: exit codes; and `nl.testing`."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from command_outputs import check_output
from torch import nn

import normless as nl
from normless.cli import main

NETS = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.a, self.b, self.shift = nn.Linear(8, 8), nn.Linear(8, 3), shift

    def forward(self, x):
        h = torch.log(self.a(x).abs() - self.shift)
        return self.b(h)


def broken():
    return Net(100.0), torch.randn(16, 8)


def whole():
    return Net(-1.0), torch.randn(16, 8)
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my models"
    folder.mkdir()
    (folder / "nets.py").write_text(NETS)
    return tmp_path


@pytest.mark.parametrize(("name", "status"), [("broken", 1), ("whole", 0)])
def test_findings_are_a_failure_of_the_strict_command(
    name: str, status: int, nets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", f"my models/nets.py:{name}", "--strict", "--json"]) == status
    printed = json.loads(capsys.readouterr().out)
    check_output("diagnose", printed)
    assert len(printed["findings"]) == status


def perceptron() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 3))
    return net, (torch.randn(32, 8), torch.arange(32) % 3)


def test_a_network_that_trains_passes_and_stays_as_it_is() -> None:
    net, batch = perceptron()
    before = deepcopy(net.state_dict())
    nl.testing.assert_trains(net, batch, torch.optim.AdamW(net.parameters(), 1e-2))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_network_that_does_not_train_fails_with_the_diagnosis() -> None:
    net, batch = perceptron()
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    last = torch.optim.SGD(net[2].parameters(), 0.1)
    with pytest.raises(AssertionError, match="This Sequential does not train: ") as failed:
        nl.testing.assert_trains(net, batch, last)
    said = str(failed.value)
    kinds = said.partition("train: ")[2].partition(".\n")[0].split(", ")
    assert "untrained_parameters" in kinds
    assert "   cure: " in said
    nl.testing.assert_trains(net, batch, last, known=kinds)
