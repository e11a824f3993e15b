"""What a run or a sweep takes of the user's own files: with another content it is another run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from run_helpers import Interrupt

import normless as nl
from normless.models import build_model
from normless_lab.train import TrainConfig, train
from normless_lab.train.directory import RunDirectoryError

NETWORK = """
from torch import nn


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, 10))
"""
SETTINGS = {"batch_size": 512, "epochs": 2, "crop": 0, "flip": False, "device": "cpu", "scheme": "as_written"}


@pytest.fixture
def network(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(NETWORK.format(width=8))
    return file


def _interrupted(config: TrainConfig, directory: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(config, directory, listeners=[Interrupt(3)])


def test_a_changed_file_is_not_resumed(tmp_path: Path, network: Path) -> None:
    def config() -> TrainConfig:
        return TrainConfig(model=f"{network}:network", **SETTINGS)

    first = config()
    _interrupted(first, tmp_path / "run")
    # The same text and another meaning: the weights fit, the network is another.
    network.write_text(NETWORK.format(width=8).replace("ReLU", "Tanh"))
    assert config().hash != first.hash
    with pytest.raises(RunDirectoryError, match=r"another content of .*mine\.py, which has changed since then"):
        train(config(), tmp_path / "run")
    network.write_text(NETWORK.format(width=8))
    assert config().hash == first.hash
    result = train(config(), tmp_path / "run")
    network.write_text(NETWORK.format(width=16))
    with pytest.raises(RunDirectoryError, match=r"mine\.py"):
        train(config(), tmp_path / "run")
    assert train(config(), tmp_path / "run", resume=False) != result


def test_what_a_file_imports_of_its_own_folder_counts(tmp_path: Path, network: Path) -> None:
    def digest() -> str:
        return TrainConfig(model=f"{network}:network", **SETTINGS).hash

    alone = digest()
    (tmp_path / "unused.py").write_text("x = 1\n")
    assert digest() == alone
    package = tmp_path / "blocks"
    package.mkdir()
    (package / "__init__.py").write_text("from .width import WIDTH\n")
    (package / "width.py").write_text("WIDTH = 8\n")
    network.write_text("import torch\nfrom blocks import WIDTH\n" + NETWORK.format(width=8))
    importing = digest()
    (package / "width.py").write_text("WIDTH = 16\n")
    assert digest() not in (alone, importing)


def test_other_weights_in_the_folder_of_a_saved_network_are_another_run(tmp_path: Path) -> None:
    def save(seed: int) -> TrainConfig:
        torch.manual_seed(seed)
        text, inputs = "normless:wide_resnet(depth=10, width=1, in_channels=1)", torch.zeros(2, 1, 8, 8)
        nl.save(nl.convert(build_model(text), "skipinit", inputs), tmp_path / "saved", text, example_inputs=inputs)
        return TrainConfig(model=str(tmp_path / "saved"), **{**SETTINGS, "scheme": "batch_norm"})

    first = save(0)
    _interrupted(first, tmp_path / "run")
    assert save(0).hash == first.hash
    second = save(1)
    assert second.hash != first.hash
    with pytest.raises(RunDirectoryError, match=r"another content of .*saved"):
        train(second, tmp_path / "run")
