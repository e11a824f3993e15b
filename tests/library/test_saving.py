"""A converted network saved and loaded is the same network; whatever does not fit is told in a sentence."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from kills import killed_before
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import normless as nl
from normless.conversion import scheme_of
from normless.models._spec import build_model, build_with_inputs, fitted_spec
from normless.saving import _folder

CIFAR = "normless:resnet_cifar(depth=8)"
FOREIGN = "timm:test_resnet"
DENSE = "normless:dense(depth=2, width=4, in_features=3)"
IMAGES = torch.randn(2, 3, 32, 32)

MINE = """
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.norm = nn.LayerNorm(4)
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 9, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids, mask=None):
        h = self.table(ids)
        f = self.mix(self.norm(h))
        return self.out(h + (f if mask is None else f * mask))

def words():
    return Words()
"""


def trained(net: nn.Module, *inputs: Any) -> nn.Module:
    """The network with every parameter and statistic moved off its first value."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        net(*inputs)
    return net


def same_state(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return list(left) == list(right) and all(
        value.dtype == right[name].dtype and torch.equal(value, right[name]) for name, value in left.items()
    )


@pytest.mark.parametrize(
    ("spec", "scheme"),
    [
        *((CIFAR, scheme) for scheme in ("lsuv", "nf_resnet")),
        *((FOREIGN, scheme) for scheme in ("skipinit(alpha=1/sqrt(L))", "batch_norm_sqrt2")),
    ],
)
def test_what_is_loaded_is_what_was_saved(spec: str, scheme: str, tmp_path: Path) -> None:
    net = trained(nl.convert(build_model(spec), scheme, IMAGES), IMAGES)
    written = nl.save(net, tmp_path / "new" / "net", spec, example_inputs=IMAGES)
    assert sorted((tmp_path / "new" / "net").iterdir()) == list(written)
    state = torch.get_rng_state()
    loaded = nl.load(tmp_path / "new" / "net")
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(loaded, type(build_model(spec)))
    assert scheme_of(loaded) == scheme
    assert same_state(net, loaded)
    assert torch.equal(loaded.eval()(IMAGES), net.eval()(IMAGES))


def test_a_network_that_no_text_names_is_given_to_load(tmp_path: Path) -> None:
    model = build_model(FOREIGN)
    net = trained(nl.convert(model, "fixup", IMAGES), IMAGES)
    nl.save(net, tmp_path, example_inputs=IMAGES)
    with pytest.raises(nl.errors.RecipeError, match=r"does not name the network .* nl.load\(path, model=…\)\.$"):
        nl.load(tmp_path)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert same_state(nl.load(tmp_path, model), net)
    assert scheme_of(model) is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert same_state(nl.load(tmp_path, FOREIGN), net)


def test_a_file_is_found_from_anywhere_and_inputs_come_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    inputs = {"ids": torch.ones(2, 5, dtype=torch.long), "mask": torch.ones(2, 5, 1, dtype=torch.bool)}
    net = trained(nl.convert(build_model("mine.py:words"), "skipinit", **inputs), *inputs.values())
    weights, recipe = nl.save(net, "saved", "mine.py:words", example_inputs=inputs)
    assert json.loads(recipe.read_text())["inputs"] == {
        "ids": {"shape": [2, 5], "dtype": "int64"},
        "mask": {"shape": [2, 5, 1], "dtype": "bool"},
    }
    assert len({"table.weight", "out.weight"} & set(load_file(weights))) == 1
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = nl.load(tmp_path / "saved")
    assert torch.equal(loaded(**inputs), net(**inputs))
    assert loaded.out.weight is loaded.table.weight


@pytest.fixture
def two(tmp_path: Path) -> tuple[nn.Module, nn.Module]:
    """A saved network, and another that is not saved yet."""
    former, new = (nl.convert(build_model(DENSE), "skipinit", torch.ones(2, 3)) for _ in range(2))
    nl.save(former, tmp_path / "net", DENSE)
    return former, new


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
def test_a_network_is_there_whenever_saving_another_is_killed(
    tmp_path: Path, two: tuple[nn.Module, nn.Module]
) -> None:
    new = two[1]
    number, was_killed = 1, True
    while was_killed:
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "net", folder)
        # The second time, in every other round, what is left of the first is there too.
        for _ in range(1 + number % 2):
            was_killed = killed_before(number, folder, lambda folder=folder: nl.save(new, folder))  # type: ignore[misc]
            loaded = nl.load(folder, DENSE)
            assert any(same_state(loaded, net) for net in two)
        number += 1
    assert number > 8
    assert same_state(loaded, new)
    assert sorted(file.name for file in folder.iterdir()) == ["model.safetensors", "recipe.json"]


@pytest.mark.parametrize("name", ["part", "recipe.json", "model.safetensors"])
def test_a_network_is_there_however_often_saving_another_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two: tuple[nn.Module, nn.Module], name: str
) -> None:
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if target.name == name:
            raise OSError("the disk is full")
        return replace(path, target)

    def broken(*_: object) -> None:
        raise OSError("the disk is full")

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", refuse)
            if name == "part":
                patch.setattr("normless.saving._folder.save_file", broken)
            with pytest.raises(OSError, match="full"):
                nl.save(two[1], tmp_path / "net", DENSE)
        assert same_state(nl.load(tmp_path / "net"), two[name == "model.safetensors"])


def _save_often(folder: Path, number: int, times: int) -> None:
    """Save a network whose parameters and remarks are all `number`; exits the process."""
    net = nl.convert(build_model(DENSE), "skipinit", torch.ones(2, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(number)
    for module in net.modules():
        module.remark = number  # type: ignore[assignment]
    for _ in range(times):
        nl.save(net, folder)


def saved_at_once(folder: Path, savers: int, times: int) -> int:
    """Save from several processes to one folder and load meanwhile; return how often a whole network was loaded."""
    _save_often(folder, 0, 1)
    fork, loaded = get_context("fork"), 0
    processes = [fork.Process(target=_save_often, args=(folder, number, times)) for number in range(savers)]
    for process in processes:
        process.start()
    is_running = True
    while is_running:
        is_running = any(process.is_alive() for process in processes)
        net: Any = nl.load(folder, DENSE)
        values = {float(value) for parameter in net.parameters() for value in parameter.detach().flatten()}
        assert values == {module.remark for module in net.modules()}
        loaded += 1
    assert [process.exitcode for process in processes] == [0] * savers
    assert sorted(file.name for file in folder.iterdir()) == ["model.safetensors", "recipe.json"]
    return loaded


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
def test_processes_save_to_one_folder_at_once(tmp_path: Path) -> None:
    assert saved_at_once(tmp_path / "net", savers=5, times=5) > 1


@pytest.mark.parametrize("locks", [True, False])
def test_what_killed_processes_left_is_removed_and_what_others_write_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool, two: tuple[nn.Module, nn.Module]
) -> None:
    folder = tmp_path / "net"
    names = ("model.a.safetensors", "model.b.safetensors.part", "recipe.json.b.part")
    for name in (*names, *(name.replace("b", "old") for name in names[1:])):
        (folder / name).touch()
        if "old" in name:
            os.utime(folder / name, (0, 0))
    if not locks:
        monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError("no locks here")))
    weights, recipe = nl.save(two[1], folder)
    assert same_state(nl.load(folder, DENSE), two[1])
    left = {*names} - ({"model.a.safetensors"} if locks else set())
    former = set() if locks else {"model.safetensors"}
    assert {file.name for file in folder.iterdir()} == left | former | {weights.name, recipe.name}


def test_sealing_keeps_a_network_that_is_saved_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, two: tuple[nn.Module, nn.Module]
) -> None:
    read, others = _folder.read, [two[1]]

    def read_before_another_is_saved(folder: Path, *, edited: bool) -> Any:
        found = read(folder, edited=edited)
        if others:
            nl.save(others.pop(), folder)
        return found

    monkeypatch.setattr(_folder, "read", read_before_another_is_saved)
    _folder.seal(tmp_path / "net")
    monkeypatch.undo()
    assert same_state(nl.load(tmp_path / "net", DENSE), two[1])


def test_a_text_of_trained_weights_is_recorded_without_them(tmp_path: Path) -> None:
    net = nl.convert(build_model(FOREIGN), "skipinit", IMAGES)
    nl.save(net, tmp_path, "timm:test_resnet(pretrained=True)", example_inputs=IMAGES)
    assert json.loads((tmp_path / "recipe.json").read_text())["model"] == FOREIGN
    assert same_state(nl.load(tmp_path), net)


def test_a_flipped_bit_of_the_weights_is_told(tmp_path: Path) -> None:
    net = nl.convert(build_model(CIFAR), "skipinit")
    weights, _ = nl.save(net, tmp_path, CIFAR)
    data = bytearray(weights.read_bytes())
    for place in (len(data) // 2, len(data) - 1):
        data[place] ^= 1
        weights.write_bytes(data)
        with pytest.raises(nl.errors.RecipeError, match="are damaged: they are not those that were saved there"):
            nl.load(tmp_path)
        data[place] ^= 1
    weights.write_bytes(data)
    assert same_state(nl.load(tmp_path), net)


def edit(folder: Path, **values: Any) -> None:
    """Change values of the recipe; None takes one away."""
    recipe = json.loads((folder / "recipe.json").read_text()) | values
    written = {name: value for name, value in recipe.items() if value is not None or name not in values}
    (folder / "recipe.json").write_text(json.dumps(written))


def reweigh(folder: Path, **tensors: Tensor) -> None:
    """Change weights."""
    changed = load_file(folder / "model.safetensors") | {
        name.replace("__", "."): one for name, one in tensors.items()
    }
    save_file(changed, folder / "model.safetensors")


BROKEN: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "recipe.json").unlink(), "There is no saved network in .*: it has no recipe.json"),
    (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors cannot be read"),
    (lambda folder: (folder / "recipe.json").write_text("{"), "is not the JSON text that normless writes"),
    (lambda folder: edit(folder, format=99), "written by a later version of normless"),
    (lambda folder: edit(folder, scheme=None), "scheme is not as normless writes it"),
    (
        lambda folder: edit(folder, model="normless:resnet_cifar(depth=14)"),
        r"resnet_cifar\(depth=14\) .*\d+ are not in the file",
    ),
    (lambda folder: reweigh(folder, more=torch.ones(1)), "1 are not in the network, the first more"),
    (lambda folder: reweigh(folder, classifier__bias=torch.ones(3)), "1 differ in shape, the first classifier.bias"),
]


@pytest.mark.parametrize(("breaks", "said"), BROKEN)
def test_what_does_not_fit_is_told(breaks: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    nl.save(nl.convert(build_model(CIFAR), "skipinit"), tmp_path, CIFAR)
    breaks(tmp_path)
    with pytest.raises(ValueError, match=said) as caught:
        nl.load(tmp_path, edited=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "classes", "shape", "expected"),
    [
        (CIFAR, None, None, "normless:resnet_cifar(depth=8, in_channels=3)"),
        (CIFAR, 7, (1, 8, 8), "normless:resnet_cifar(depth=8, classes=7, in_channels=1)"),
        ("normless:dense(depth=1, width=4)", None, (1, 4, 4), "normless:dense(depth=1, width=4, in_features=16)"),
        (FOREIGN, 5, (2, 32, 32), "timm:test_resnet(num_classes=5, in_chans=2)"),
        ("timm:test_resnet(in_chans=2)", None, (2, 32, 32), "timm:test_resnet(in_chans=2)"),
    ],
)
def test_the_text_of_a_fitted_network_names_it_alone(
    spec: str, classes: int | None, shape: tuple[int, int, int] | None, expected: str
) -> None:
    text = fitted_spec(spec, classes=classes, image_shape=shape)
    assert text == expected
    model, _ = build_with_inputs(spec, classes=classes, image_shape=shape)
    alone = build_model(text)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    assert {name: value.shape for name, value in alone.state_dict().items()} == shapes
