"""Blocks of the networks of timm, torchvision and transformers, counted by hand."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from zoo_checks import Expected, MapChecks, Mapped
from zoo_networks import BY_NAME, ZOO
from zoo_transformers import BUILDERS

from normless.cli import main
from normless.models.spec import build_model

# A few seconds each, and no two of one kind: what `make test` sees of the sweep, the rest being `make zoo`.
QUICK = {"test_byobnet", "test_convnext", "test_nfnet", "test_resnet", "test_vit", "torchvision resnet18"}
QUICK |= {"transformers bert", "transformers t5", "transformers encoder pre-norm"}


def test_every_architecture_module_has_a_network() -> None:
    # A newer timm has more: add a network of each to the table, with its blocks counted.
    assert set(timm.list_modules()) - {network.module for network in ZOO} == set()


# The blocks, and those without an identity skip, by the definition of each. None of them nests blocks.
CLASSIFIERS = {
    "alexnet": Expected(0),
    "convnext_tiny": Expected(3 + 3 + 9 + 3),
    "densenet121": Expected(0),
    "efficientnet_b0": Expected(0 + 1 + 1 + 2 + 2 + 3 + 0),
    "googlenet": Expected(0),
    "inception_v3": Expected(0),
    # Every layer: an inverted residual, window attention, MLP, grid attention, MLP; the first of a stage strides.
    "maxvit_t": Expected((2 + 2 + 5 + 2) * 5, fitted=4),
    "mnasnet0_5": Expected(2 + 2 + 2 + 1 + 3 + 0),
    "mobilenet_v2": Expected(0 + 1 + 2 + 3 + 2 + 2 + 0),
    "mobilenet_v3_small": Expected(0 + 1 + 2 + 1 + 2),
    "regnet_y_400mf": Expected(1 + 3 + 6 + 6, fitted=4),
    "resnet18": Expected(2 + 2 + 2 + 2, fitted=3),
    "resnext50_32x4d": Expected(3 + 4 + 6 + 3, fitted=4),
    "shufflenet_v2_x0_5": Expected(0),
    "squeezenet1_0": Expected(0),
    "swin_t": Expected(2 * (2 + 2 + 6 + 2)),
    "swin_v2_t": Expected(2 * (2 + 2 + 6 + 2)),
    "vgg11_bn": Expected(0),
    "vit_b_16": Expected(2 * 12),
    "wide_resnet50_2": Expected(3 + 4 + 6 + 3, fitted=4),
}
VIDEO = {"mvit_v1_b": Expected(2 * 16, fitted=3 + 3), "r3d_18": Expected(2 + 2 + 2 + 2, fitted=3)}
# These two draw weights from a distribution that takes minutes unless told not to.
OPTIONS: dict[str, dict[str, Any]] = {"googlenet": {"init_weights": False}, "inception_v3": {"init_weights": False}}


# Every layer is an attention and an MLP; T5's decoder has a cross attention between them.
EXPECTED = {
    "bert": Expected(3 * 2),
    "vit": Expected(3 * 2),
    "gpt2": Expected(3 * 2),
    "t5": Expected(2 * 2 + 3 * 3),
    "swin": Expected((2 + 1) * 2),
    "convnext": Expected(1 + 2 + 1 + 1),
    # The first of every stage projects: to another width, at another stride, or both.
    "resnet": Expected(2 + 1 + 1, fitted=3),
    "encoder post-norm": Expected(3 * 2),
    "encoder pre-norm": Expected(3 * 2),
    "decoder": Expected(2 * 3),
}


def of_timm(name: str) -> Mapped:
    network = BY_NAME[name]
    if not timm.is_model(network.name):
        pytest.skip(f"timm {timm.__version__} has no {network.name}")
    model = network.build()
    return Mapped.of(model, network.images(model), expected=Expected(network.blocks, network.inner, network.fitted))


def of_torchvision(name: str) -> Mapped:
    model = torchvision.models.get_model(name, **OPTIONS.get(name, {}))
    size = 299 if name == "inception_v3" else 224
    sizes = {"r3d_18": (16, 112, 112), "mvit_v1_b": (16, 224, 224)}.get(name, (size, size))
    return Mapped.of(model, torch.randn(2, 3, *sizes), expected=(CLASSIFIERS | VIDEO)[name])


def of_transformers(name: str) -> Mapped:
    model, inputs = BUILDERS[name]()
    return Mapped.of(model, expected=EXPECTED[name], **inputs)


NETWORKS: dict[str, Callable[[], Mapped]] = {
    **{network.name: partial(of_timm, network.name) for network in ZOO},
    **{f"torchvision {name}": partial(of_torchvision, name) for name in CLASSIFIERS | VIDEO},
    **{f"transformers {name}": partial(of_transformers, name) for name in BUILDERS},
}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.zoo) for name in NETWORKS]
)
def mapped(request: pytest.FixtureRequest) -> Mapped:
    return NETWORKS[request.param]()


class TestMaps(MapChecks):
    pass


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


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "name", ["lraspp_mobilenet_v3_large", "fasterrcnn_mobilenet_v3_large_320_fpn", "ssdlite320_mobilenet_v3_large"]
)
def test_a_backbone_is_not_downloaded_unasked(name: str) -> None:
    assert "weights_backbone" in signature(torchvision.models.get_model_builder(name)).parameters
    assert build_model(f"torchvision:{name}") is not None


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "text", ["torchvision:resnet18", "timm:test_resnet", "transformers:bert(num_hidden_layers=1)"]
)
def test_others_ask_for_nothing(text: str) -> None:
    assert build_model(text) is not None


@pytest.mark.usefixtures("offline")
def test_a_command_on_data_that_is_not_here_asks_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "torchvision:resnet18"]) == 0
    assert main(["list"]) == 0
    assert capsys.readouterr().out
