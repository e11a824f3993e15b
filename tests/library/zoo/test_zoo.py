"""The script of the zoo's table; networks of torchvision, timm and transformers ask for no download."""

from __future__ import annotations

import socket
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.models import get_model_builder

from normless.cli import main
from normless.models.spec import build_model

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "zoo.py"


@pytest.mark.zoo
def test_a_row_per_network(tmp_path: Path) -> None:
    out = tmp_path / "zoo.md"
    subprocess.run([sys.executable, SCRIPT, out, "res2next50", "test_vit"], check=True, capture_output=True)
    written = out.read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in written.splitlines() if line[:1] == "|"]
    # 4 of 16 blocks project; inside the other 12 two sums add neighbouring channels, which is no identity skip. Each
    # block has 5 norms, one of them last, and so are those of the sums inside.
    assert rows[2][:-1] == ["res2net", "res2next50", "16 + 24", "12", "40", "4", "1", "40", "0"]
    assert rows[3][:-1] == ["vision_transformer", "test_vit", "12", "12", "12", "0", "0", "1", "0"]
    assert all(float(row[-1]) > 0 for row in rows[2:])
    assert f"torch {torch.__version__}" in written


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection and every look-up of a name is an error that nothing catches."""

    def refuse(*args: Any, **_: Any) -> Any:
        pytest.fail(f"the network was asked: {args}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


BACKBONES = (
    *("lraspp_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"),
)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "text",
    [
        *(f"torchvision:{name}" for name in BACKBONES),
        *("torchvision:resnet18", "timm:test_resnet", "transformers:bert(num_hidden_layers=1)"),
    ],
)
def test_no_weights_are_downloaded_unasked(text: str) -> None:
    if text.partition(":")[2] in BACKBONES:
        assert "weights_backbone" in signature(get_model_builder(text.partition(":")[2])).parameters
    assert build_model(text) is not None


@pytest.mark.usefixtures("offline")
def test_a_command_on_data_that_is_not_here_asks_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "torchvision:resnet18"]) == 0
    assert main(["list"]) == 0
    assert capsys.readouterr().out
