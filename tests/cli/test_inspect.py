"""``normless inspect`` prints the residual map, for people and for machines."""

from __future__ import annotations

import json

import pytest
import torch

from normless import residual_map
from normless.cli import main
from normless.models import resnet_cifar


def test_the_table_names_every_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "normless:wide_resnet(depth=16, width=1)"]) == 0
    printed = capsys.readouterr().out
    assert "6 residual blocks" in printed
    for index in range(6):
        assert f"blocks.{index}" in printed


def test_json_is_the_map_as_a_dict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "normless:resnet_cifar(depth=8)", "--json"]) == 0
    expected = residual_map(resnet_cifar(8), torch.zeros(2, 3, 32, 32)).to_dict()
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(expected))


def test_a_network_of_ones_own_with_its_own_images(
    tmp_path,
    capsys: pytest.CaptureFixture[str],  # type: ignore[no-untyped-def]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from normless.models import wide_resnet\n\n\ndef build():\n    return wide_resnet(depth=10, in_channels=1)\n"
    )
    assert main(["inspect", f"{file}:build", "--image", "1", "8", "8", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["blocks"]) == 3
