"""Networks of torchvision, timm and transformers ask for no download."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from normless.models._spec import build_model


@pytest.mark.parametrize(
    "text",
    [
        *("torchvision:lraspp_mobilenet_v3_large", "torchvision:fasterrcnn_mobilenet_v3_large_320_fpn"),
        *("torchvision:resnet18", "timm:test_resnet", "transformers:bert(num_hidden_layers=1)"),
    ],
)
def test_no_weights_are_downloaded_unasked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection and every look-up of a name is an error that nothing catches."""

    def refuse(*args: Any, **_: Any) -> Any:
        pytest.fail(f"the network was asked: {args}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert build_model(text) is not None
