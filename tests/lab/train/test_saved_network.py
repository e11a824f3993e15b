"""Runs that train a saved converted network further: from its weights, with its scheme, and as resumable as any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from run_helpers import Interrupt, without_seconds
from torch import nn

import normless as nl
from normless.conversion import scheme_of
from normless.models._spec import build_model
from normless_lab.data import load_data
from normless_lab.train import TrainConfig, train, trained_network

MODEL = "normless:resnet_cifar(depth=8, classes=10, in_channels=1)"
DATA = load_data("digits")


def saved(folder: Path, model: str = MODEL, scheme: str = "fixup") -> nn.Module:
    """A converted network with noise on its weights, saved in a folder in evaluation mode."""
    torch.manual_seed(3)
    net = nl.convert(build_model(model), scheme, torch.randn(2, 1, 8, 8))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    nl.save(net.eval(), folder, model, example_inputs=torch.randn(2, 1, 8, 8))
    return net


def config(folder: Path, **changes: Any) -> TrainConfig:
    settings = {"model": str(folder), "batch_size": 512, "epochs": 2, "rate": 0.05, "crop": 0, "device": "cpu"}
    return TrainConfig.from_dict(settings | changes)


def mean_loss(net: nn.Module) -> float:
    """The mean cross entropy over the training digits, of one batch of all."""
    (batch,) = DATA.train_batches(DATA.train_size, seed=0, epoch=0, augmentation=DATA.default_augmentation)
    with torch.no_grad():
        return F.cross_entropy(net(batch.inputs), batch.targets).item()


def test_it_is_trained_from_there_and_read_back(tmp_path: Path) -> None:
    net = saved(tmp_path / "net")
    still = config(tmp_path / "net", rate=1e-12, batch_size=DATA.train_size, epochs=1)
    first = train(still, tmp_path / "still").epochs[0].training_loss
    assert first == pytest.approx(mean_loss(net), rel=1e-5)
    requested = config(tmp_path / "net", rate=0.1, epochs=4)
    with pytest.raises(KeyboardInterrupt):
        train(requested, tmp_path / "run", listeners=[Interrupt(5)])
    result = train(requested, tmp_path / "run")
    assert without_seconds(result) == without_seconds(train(requested, tmp_path / "whole"))
    assert result.epochs[-1].training_loss < first
    tuned = trained_network(tmp_path / "run")
    assert scheme_of(tuned) == "fixup"
    assert nl.residual_map(tuned).norms == {}
    assert result.parameters == sum(parameter.numel() for parameter in net.parameters())
    right = sum(int((tuned(x).argmax(1) == y).sum()) for x, y in DATA.test_batches(100))
    assert result.test_accuracy == right / DATA.test_size
