"""The script of the zoo's table; networks of torchvision, timm and transformers ask for no download."""

from __future__ import annotations

import socket
from inspect import signature
from typing import Any

import pytest
from torchvision.models import get_model_builder

from normless.models.spec import build_model


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
