"""Each example of a loop, run on a handful of digits by its own function."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL: dict[str, Any] = {"layers": (1, 1, 1, 1), "channels": (8, 8, 16, 16)}


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The function of an example's file, which may import the files beside it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    return lambda file, name: runpy.run_path(str(EXAMPLES / file))[name]


def small() -> nn.Module:
    return ResNet(BasicBlock, num_classes=10, **SMALL)


def norms(net: nn.Module) -> list[str]:
    return [name for name, one in net.named_modules() if "Norm" in type(one).__name__]


def assert_trained_without_norms(net: nn.Module, start: float) -> None:
    """No norm layer is left, and every multiplier has moved off the value that its scheme gave it."""
    multipliers = [float(one.detach()) for name, one in net.named_parameters() if name.endswith("multiplier")]
    assert norms(net) == []
    assert multipliers
    assert start not in multipliers


@pytest.mark.parametrize(
    ("file", "arguments", "options", "start"),
    [
        ("pytorch_loop.py", (), {"epochs": 12}, 0.0),
        pytest.param("accelerate_loop.py", (), {"epochs": 4}, 0.0, marks=pytest.mark.slow),
        pytest.param("timm_script.py", ("resnet18", "fixup"), {"epochs": 4, **SMALL}, 1.0, marks=pytest.mark.slow),
    ],
)
def test_loop(function: Any, file: str, arguments: tuple[Any, ...], options: Any, start: float) -> None:
    net, losses = function(file, "train")(*(arguments or (small(),)), examples=128, **options)
    assert losses[-1] < losses[0]
    assert_trained_without_norms(net, start)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # Lightning's, about torch
@pytest.mark.filterwarnings("ignore:.*num_workers:UserWarning", "ignore:.*log_every_n_steps")
def test_lightning_trainer(function: Any) -> None:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    module, watch = function("lightning_trainer.py", "train")(small(), 12, 128, **quiet)
    assert_trained_without_norms(module.net, start=0.0)
    losses = watch.watch.table.query("quantity == 'loss'")["value"]
    assert float(module.trainer.callback_metrics["loss"]) < losses.iloc[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # the Trainer's default, where there is no device
def test_transformers_trainer(function: Any, tmp_path: Path) -> None:
    net, trainer = function("transformers_trainer.py", "train")(epochs=3, out=str(tmp_path / "net"), examples=64)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert norms(net) == []
    batch = {"pixel_values": trainer.train_dataset[:4][0]}
    with torch.no_grad():
        outputs = [one.eval()(**batch).logits for one in (net, trainer.model)]
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_onnx_export(function: Any, tmp_path: Path) -> None:
    for operators, difference in function("onnx_export.py", "main")(small, 1, tmp_path, examples=64).values():
        assert operators["Conv"] == 13
        assert not [one for one in operators if "Norm" in one]
        assert difference < 1e-5
