"""`normless diagnose` in continuous integration: SARIF, baselines, exit codes; and `nl.testing`."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from command_outputs import check_output
from sarif_schema import SARIF
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


def test_known_findings_do_not_fail_and_new_ones_do(nets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["diagnose", "my models/nets.py:broken", "--strict", "--json", "--baseline", "known.json"]
    assert main([*words, "--write-baseline", "--sarif", "log.sarif"]) == 0
    printed = json.loads(capsys.readouterr().out)
    check_output("diagnose", printed)
    assert printed["baseline"] == {"file": "known.json", "known": 1, "new": 0, "gone": 0}
    log = json.loads((nets / "log.sarif").read_text("utf-8"))
    SARIF.validate(log)
    (result,) = log["runs"][0]["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "my%20models/nets.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 1 + NETS.splitlines().index("        h = torch.log(self.a(x).abs() - self.shift)")},
    }
    assert (result["level"], result["baselineState"]) == ("error", "unchanged")
    assert str(nets) not in (nets / "known.json").read_text("utf-8") + json.dumps(log)
    assert main(words) == 0
    # Findings of another network are not known by it.
    entries = json.loads((nets / "known.json").read_text("utf-8"))
    entries["findings"][0]["network"] = "my models/nets.py:whole"
    (nets / "known.json").write_text(json.dumps(entries))
    capsys.readouterr()
    assert main(words) == 1
    assert json.loads(capsys.readouterr().out)["baseline"]["new"] == 1


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
