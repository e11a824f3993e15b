"""Each example of a loop, run on a handful of digits by its own function."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.models.resnet import BasicBlock, ResNet
from torch import nn

from normless.nn import ResidualSum, ScalarAffine

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The function of an example's file, which may import the files beside it."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    return lambda file, name: runpy.run_path(str(EXAMPLES / file))[name]


SMALL: dict[str, Any] = {"layers": (1, 1, 1, 1), "channels": (8, 8, 16, 16)}


def small() -> nn.Module:
    return ResNet(BasicBlock, num_classes=10, **SMALL)


def scalars(net: nn.Module) -> dict[str, float]:
    """Every parameter of one element."""
    return {name: float(one.detach()) for name, one in net.named_parameters() if one.numel() == 1}


def assert_trained_without_norms(net: nn.Module, start: float) -> None:
    """No norm layer is left, and every multiplier has moved off the value that its scheme gave it."""
    assert not [name for name, one in net.named_modules() if "Norm" in type(one).__name__]
    multipliers = {name: value for name, value in scalars(net).items() if name.endswith("multiplier")}
    assert multipliers
    assert all(value != start for value in multipliers.values())
    assert any(isinstance(one, ScalarAffine | ResidualSum) for one in net.modules())


def test_pytorch_loop(function: Any, capsys: pytest.CaptureFixture[str]) -> None:
    net, losses = function("pytorch_loop.py", "train")(small(), epochs=12, examples=128)
    assert losses[-1] < losses[0]
    assert_trained_without_norms(net, start=0.0)
    assert "epoch 12: loss" in capsys.readouterr().out


@pytest.mark.slow
def test_accelerate_loop(function: Any) -> None:
    net, losses = function("accelerate_loop.py", "train")(small(), epochs=4, examples=128)
    assert losses[-1] < losses[0]
    assert_trained_without_norms(net, start=0.0)


@pytest.mark.slow
def test_timm_script(function: Any) -> None:
    net, losses = function("timm_script.py", "train")("resnet18", "fixup", epochs=4, examples=128, **SMALL)
    assert losses[-1] < losses[0]
    assert_trained_without_norms(net, start=1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec")  # Lightning's, about torch
@pytest.mark.filterwarnings("ignore:.*num_workers:UserWarning", "ignore:.*log_every_n_steps")
def test_lightning_trainer(function: Any) -> None:
    train = function("lightning_trainer.py", "train")
    module, watch = train(small(), 12, 128, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    assert_trained_without_norms(module.net, start=0.0)
    losses = watch.watch.table.query("quantity == 'loss'")["value"]
    assert float(module.trainer.callback_metrics["loss"]) < losses.iloc[0]
    # The hooks are gone, and each parameter is in the group of its role.
    assert not module._forward_pre_hooks
    groups = {group["name"]: group for group in module.optimizers().param_groups}
    assert groups["scalars"]["weight_decay"] == 0 < groups["weights"]["weight_decay"]
    assert len(groups["scalars"]["params"]) == len(scalars(module.net))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # the Trainer's default, where there is no device
def test_transformers_trainer(function: Any, tmp_path: Path) -> None:
    net, trainer = function("transformers_trainer.py", "train")(epochs=3, out=str(tmp_path / "net"), examples=64)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert not [name for name, one in net.named_modules() if "Norm" in type(one).__name__]
    batch = {"pixel_values": trainer.train_dataset[:4][0]}
    with torch.no_grad():
        torch.testing.assert_close(
            net.eval()(**batch).logits, trainer.model.eval()(**batch).logits, rtol=0, atol=1e-5
        )


@pytest.mark.slow
def test_onnx_export(function: Any, tmp_path: Path) -> None:
    for operators, difference in function("onnx_export.py", "main")(small, 1, tmp_path, examples=64).values():
        assert operators["Conv"] == 13
        assert not [one for one in operators if "Norm" in one]
        assert difference < 1e-5


@pytest.mark.slow
def test_optuna_study(function: Any, tmp_path: Path) -> None:
    study_of_schemes = function("optuna_study.py", "study_of_schemes")
    for trials in (2, 3):
        study = study_of_schemes(
            tmp_path, 1 if trials == 3 else 2, "normless:wide_resnet(depth=10, width=1)", epochs=1
        )
        assert len(study.trials) == trials
    assert {trial.state.name for trial in study.trials} <= {"COMPLETE", "PRUNED"}
    assert 0 < study.best_value <= 1
    assert set(study.best_params) == {"scheme", "rate", "weight_decay"}
