"""A small network that a person has trained, as a folder with `model.txt` and a state dict."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from normless.models import build_model
from normless_lab.data import Augmentation, load_data

MODEL = "normless:resnet(depth=18, channels=4, in_channels=1, classes=7)"
DATA = "digits(train=128, test=100)"


def folder_with(path: Path, text: str = MODEL) -> Path:
    """A network of seven classes, trained for some steps; `text` is written to `model.txt`."""
    torch.manual_seed(0)
    network, data = build_model(MODEL), load_data(DATA)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for batch in data.train_batches(32, seed=0, epoch=0, augmentation=Augmentation()):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(batch.inputs), batch.targets % 7).backward()
        optimizer.step()
    path.mkdir()
    (path / "model.txt").write_text(text + "\n")
    torch.save(network.state_dict(), path / "weights.pt")
    return path
