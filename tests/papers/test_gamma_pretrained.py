"""Weights that a person has: read from folders and files, and given a classifier for other data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from papers_helpers import DATA, folder_with
from safetensors.torch import save_file

import normless as nl
from normless_lab.data import load_data
from normless_papers.gamma.pretrained import fitted, networks_in, pretrained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(tmp_path_factory.mktemp("mine") / "my_network")


def test_a_new_classifier_leaves_every_other_weight(folder: Path, tmp_path: Path) -> None:
    _, mine = pretrained(str(folder), "")
    saved = fitted(str(folder), "", load_data(DATA), tmp_path / "saved")
    own, given = nl.load(saved).state_dict(), mine.state_dict()
    new = [name for name in own if own[name].shape != given[name].shape]
    assert {name.rpartition(".")[0] for name in new} == {nl.residual_map(mine, torch.zeros(2, 1, 8, 8)).classifier}
    assert own[new[0]].shape[0] == 10
    assert all(torch.equal(own[name], given[name]) for name in own if name not in new)
    # A folder of normless is read as well.
    text, again = pretrained(str(saved), "")
    assert "resnet" in text
    assert all(torch.equal(value, own[name]) for name, value in again.state_dict().items())
    assert networks_in(str(saved)) == {"saved": str(saved)}


@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_state_dicts_are_named_after_the_papers_networks(form: str, tmp_path: Path) -> None:
    """As in torchvision's cache; its own network is the oracle."""
    torchvision = pytest.importorskip("torchvision")
    theirs = torchvision.models.resnet18(num_classes=7).eval()
    file = tmp_path / f"resnet18-f37072fd.{form}"
    # Files of old versions have no counters.
    state = {key: value for key, value in theirs.state_dict().items() if "num_batches" not in key}
    save_file(state, file) if form == "safetensors" else torch.save(state, file)
    assert networks_in(str(tmp_path)) == {"resnet_18": str(file)}
    text, mine = pretrained(str(tmp_path), "")
    images = torch.randn(2, 3, 64, 64)
    assert text == "normless:resnet(depth=18, classes=7)"
    assert torch.allclose(mine.eval()(images), theirs(images), atol=1e-5)
    (tmp_path / "wide_resnet50_2-9ba9bcbd.pth").touch()
    assert set(networks_in(str(tmp_path))) == {"resnet_18", "wide_resnet_50_2"}
