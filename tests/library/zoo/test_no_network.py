"""Naming a network asks the network for nothing: whatever is downloaded was asked for."""

from __future__ import annotations

import socket
from inspect import signature
from typing import Any

import pytest
import torchvision

from normless.cli import main
from normless.models.spec import build_model


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection and every look-up of a name is an error that nothing catches."""

    def refuse(*args: Any, **_: Any) -> Any:
        pytest.fail(f"the network was asked: {args}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize(
    "name", ["lraspp_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"]
)
def test_a_backbone_is_not_downloaded_unasked(name: str) -> None:
    assert "weights_backbone" in signature(torchvision.models.get_model_builder(name)).parameters
    assert build_model(f"torchvision:{name}") is not None


@pytest.mark.parametrize(
    "text", ["torchvision:resnet18", "timm:test_resnet", "transformers:bert(num_hidden_layers=1)"]
)
def test_others_ask_for_nothing(text: str) -> None:
    assert build_model(text) is not None


def test_a_command_on_data_that_is_not_here_asks_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "torchvision:resnet18"]) == 0
    assert main(["list"]) == 0
    assert capsys.readouterr().out
