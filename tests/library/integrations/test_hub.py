"""Networks as folders of the Hugging Face hub: written, read back, and harmless to read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import ROWS
from torch import nn

import normless as nl
from normless.integrations import HubNetwork, _hub as hub
from normless.models import resnet_cifar
from normless.saving._folder import seal

SPEC = "normless:resnet_cifar(depth=8, classes=3)"
X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def converted(scheme: str = "skipinit") -> nn.Module:
    torch.manual_seed(0)
    return nl.convert(resnet_cifar(8, classes=3), scheme, X).eval()


class Hub:
    """A hub in a folder, with the calls of huggingface_hub that push and pull."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create_repo(self, repo_id: str, **_: Any) -> Any:
        (self.folder / repo_id).mkdir(parents=True, exist_ok=True)
        return type("Repo", (), {"repo_id": repo_id})

    def upload_folder(self, *, repo_id: str, folder_path: Path, **_: Any) -> str:
        shutil.copytree(folder_path, self.folder / repo_id, dirs_exist_ok=True)
        return f"hub/{repo_id}"

    def download(self, repo_id: str, *, allow_patterns: list[str], **_: Any) -> str:
        taken = self.folder / "taken"
        taken.mkdir()
        for pattern in allow_patterns:
            for path in (self.folder / repo_id).glob(pattern):
                shutil.copy(path, taken)
        return str(taken)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("saved")
    HubNetwork(converted(), SPEC).save_pretrained(folder)
    return folder


def test_a_network_is_the_same_after_a_round_trip_through_a_folder(tmp_path: Path) -> None:
    net = converted("fixup(gain=0.5) + ZeroClassifier()")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1
    HubNetwork(net, SPEC).save_pretrained(tmp_path)
    back = HubNetwork.from_pretrained(tmp_path)
    assert torch.equal(back.network(X), net(X))
    back.save_pretrained(tmp_path / "again")
    assert "library_name: normless" in (tmp_path / "again/README.md").read_text()
    files = {path.name for path in (tmp_path / "again").iterdir()}
    assert files == {"README.md", "model.safetensors", "recipe.json"}


def test_pushing_and_pulling_transfers_recipe_weights_and_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Hub(tmp_path)
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", lambda token: fake)
    monkeypatch.setattr(hub, "snapshot_download", fake.download)
    net = converted()
    assert HubNetwork(torch.compile(net, backend="eager"), SPEC).push_to_hub("me/net") == "hub/me/net"
    (tmp_path / "me/net/model.py").write_text("1 / 0")
    assert torch.equal(HubNetwork.from_pretrained("me/net").network(X), net(X))
    assert {path.name for path in (tmp_path / "taken").iterdir()} == {"model.safetensors", "recipe.json"}


def test_a_network_of_ones_own_is_loaded_with_its_class_and_no_path_is_written(tmp_path: Path) -> None:
    own, (x,) = ROWS["CifarResNet"].network(), ROWS["CifarResNet"].example()[0]
    net = nl.convert(own, "skipinit", x).eval()
    HubNetwork(net).save_pretrained(tmp_path)
    written = (tmp_path / "README.md").read_text() + (tmp_path / "recipe.json").read_text()
    assert str(Path(__file__).parents[2]) not in written
    assert str(tmp_path) not in written
    assert torch.equal(HubNetwork.from_pretrained(tmp_path, model=own).network(x), net(x))
    with pytest.raises(nl.errors.RecipeError, match="does not name the network"):
        HubNetwork.from_pretrained(tmp_path)


URL = "timm:resnet18(pretrained=True, pretrained_cfg={'url': 'https://evil.example/x.pth'})"
EVIL = {
    "a function of an installed module": ("model", "evil:net"),
    "a function of normless": ("model", "normless.extras:import_extra(extra='', what='', module='evil')"),
    "a module as a further edit": ("scheme", "skipinit + evil:scheme()"),
    "weights of an address": ("model", URL),
    "kernels of another repository": ("model", "transformers:bert(attn_implementation='evil/kernel')"),
    "a function of torch as a setting": ("forward", {"dtype": "load"}),
}


@pytest.mark.parametrize("name", EVIL)
def test_nothing_that_a_downloaded_recipe_names_is_run(
    name: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    path, (setting, value) = tmp_path / "recipe.json", EVIL[name]
    recipe = json.loads(path.read_text())
    (recipe["state"]["modules"][0]["settings"] if setting == "forward" else recipe)[setting] = value
    path.write_text(json.dumps(recipe))
    seal(tmp_path)
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('marker').touch()\nscheme = net = dict\n")
    # The mixin hands what this file says to the loading function, as if the user had said it.
    (tmp_path / "config.json").write_text(json.dumps({"model": SPEC, "network": 1, "scheme": "skipinit"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(nl.errors.RecipeError if setting == "forward" else nl.errors.UntrustedCodeError):
        HubNetwork.from_pretrained(tmp_path)
    assert not (tmp_path / "marker").exists()


def test_a_network_that_a_file_defines_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(nl.errors.RecipeError, match=r"The Hub would not have nets\.py"):
        HubNetwork(converted(), "nets.py:net").save_pretrained(tmp_path)
