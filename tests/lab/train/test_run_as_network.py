"""The folder of a run is a network: `nl.load` and the commands take it, and code that its configuration names."""

from __future__ import annotations

import os
import py_compile
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import cache_from_source
from pathlib import Path

import pytest
import torch

import normless as nl
from normless import code_names
from normless.errors import UntrustedCodeError
from normless.saving._network import load_with_inputs
from normless_lab.live._report import write_report
from normless_lab.process import read_yaml
from normless_lab.train import TrainConfig, train, trained_network
from normless_lab.train._command import TRAIN
from normless_lab.train._directory import RunDirectoryError

MODEL = "normless:wide_resnet(depth=10, width=1)"
CODE = """
from torch import nn

def network():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
"""


def a_run(folder: Path, **changes: object) -> TrainConfig:
    settings = {"model": MODEL, "data": "digits(train=64, test=64)", "batch_size": 32, "epochs": 1, "device": "cpu"}
    config = TrainConfig.from_dict(settings | changes)
    train(config, folder, logger=None)
    return config


def test_it_is_the_network_of_the_last_checkpoint(tmp_path: Path) -> None:
    a_run(tmp_path, scheme="skipinit")
    net, inputs = load_with_inputs(tmp_path)
    assert isinstance(inputs, torch.Tensor)
    assert not net.training
    assert net.normless.scheme == "skipinit"
    torch.testing.assert_close(net(inputs), trained_network(tmp_path)(inputs), rtol=0, atol=0)
    torch.save({}, tmp_path / "checkpoint.pt")
    with pytest.raises(RunDirectoryError, match="damaged"):
        nl.load(tmp_path)
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(RunDirectoryError, match="does not have a checkpoint"):
        nl.load(tmp_path)


def test_it_is_trained_further_and_converted(tmp_path: Path) -> None:
    a_run(tmp_path / "first", scheme="batch_norm")
    a_run(tmp_path / "second", model=str(tmp_path / "first"), rate=1e-12, weight_decay=0.0)
    x = torch.randn(4, 1, 8, 8)
    first, second = (nl.load(tmp_path / name)(x) for name in ("first", "second"))
    # One epoch at a rate of nothing moves the running statistics alone.
    assert torch.nn.functional.cosine_similarity(first, second).min() > 0.9
    kept, _ = nl.convert_trained(nl.load(tmp_path / "first"), "group_norm(groups=4)", x)
    assert kept.normless.scheme.startswith("trained")


def test_code_that_a_person_trained_is_taken_while_it_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CODE)
    a_run(tmp_path / "run", model=f"{file}:network")
    # Another process has named nothing.
    monkeypatch.setattr(code_names, "_NAMED_BY_PERSONS", set())
    assert isinstance(nl.load(tmp_path / "run"), torch.nn.Module)
    file.write_text(f"{CODE}\nprint('of somebody else')\n")
    with pytest.raises(UntrustedCodeError, match="executed only if you name it"):
        nl.load(tmp_path / "run")
    assert isinstance(nl.load(tmp_path / "run", f"{file}:network"), torch.nn.Module)


def test_the_digest_of_code_that_data_name_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs.py").write_text(CODE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    text = f"{tmp_path / 'theirs.py'}:network"
    with code_names.names_of_data("recipe.json", trust_code=True):
        code_names.object_named(text)
    code_names.remember_code(text)
    # A command passes the text of a recipe on as if a person wrote it.
    code_names.object_named(text)
    monkeypatch.setenv(code_names.TRUST, "1")
    code_names.remember_code(text)
    assert not (tmp_path / "state").exists()
    monkeypatch.delenv(code_names.TRUST)
    code_names.remember_code(text)
    assert (tmp_path / "state").exists()


@pytest.mark.parametrize("state", ["", "state"])
def test_no_folder_of_data_brings_digests_along(state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path / "data")
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    code_names.object_named(f"{tmp_path / 'mine.py'}:network")
    code_names.remember_code(f"{tmp_path / 'mine.py'}:network")
    assert not [*(tmp_path / "data").iterdir()]
    (record,) = (tmp_path / "home" / ".local" / "state" / "normless" / "code").iterdir()
    monkeypatch.setattr(code_names, "_NAMED_BY_PERSONS", set())
    with code_names.names_of_data("recipe.json"):
        code_names.object_named(f"{tmp_path / 'mine.py'}:network")
        record.write_bytes(b"\xff")  # damaged
        with pytest.raises(UntrustedCodeError):
            code_names.object_named(f"{tmp_path / 'mine.py'}:network")


@pytest.mark.parametrize("other", ["chunk.py", "helper.py", "parts/inner.py", "helper" + EXTENSION_SUFFIXES[0]])
def test_code_beside_a_file_that_a_person_named_is_as_it_was(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "code"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts" / "used.py").write_text("")
    (folder / "helper.py").write_text("")
    (folder / "mine.py").write_text(f"import importlib\nimport parts.used\nimportlib.import_module('helper')\n{CODE}")
    text = f"{folder / 'mine.py'}:network"
    code_names.object_named(text)
    code_names.remember_code(text)
    monkeypatch.setattr(code_names, "_NAMED_BY_PERSONS", set())
    with code_names.names_of_data("recipe.json"):
        code_names.object_named(text)
        (folder / other).write_text("# of somebody else")
        with pytest.raises(UntrustedCodeError):
            code_names.object_named(text)


def test_compiled_code_beside_a_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    mine, theirs = tmp_path / "mine.py", tmp_path / "theirs.txt"
    mine.write_text(CODE)
    theirs.write_text("raise SystemExit('of somebody else')")
    code_names.object_named(f"{mine}:network")
    code_names.remember_code(f"{mine}:network")
    cache = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(theirs), cfile=cache_from_source(mine), invalidation_mode=cache)
    monkeypatch.setattr(code_names, "_NAMED_BY_PERSONS", set())
    os.utime(mine, (1, 1))  # so that it is executed again
    prefix = sys.pycache_prefix
    with code_names.names_of_data("recipe.json"):
        assert code_names.object_named(f"{mine}:network") is not None
    assert sys.pycache_prefix == prefix


def test_its_configuration_goes_on_in_its_folder(tmp_path: Path) -> None:
    from jsonargparse import ArgumentParser

    from normless_lab.train._command import _directory_of_config

    config = a_run(tmp_path)
    parser = ArgumentParser()
    TRAIN.add_arguments(parser)
    own = parser.parse_args(["--config", str(tmp_path / "config.yaml")])
    assert _directory_of_config(own, config) == tmp_path
    assert _directory_of_config(own, TrainConfig.from_dict(config.to_dict() | {"seed": 1})) is None
    longer = TrainConfig.from_dict(config.to_dict() | {"epochs": 2})
    assert _directory_of_config(own, longer) is None
    longer_too = parser.parse_args(["--config", str(tmp_path / "config.yaml"), "--lengthen"])
    assert _directory_of_config(longer_too, longer) == tmp_path


def test_its_page_has_curves_and_settings(tmp_path: Path) -> None:
    a_run(tmp_path / "run", epochs=2)
    (page,) = write_report(tmp_path / "run", tmp_path / "pages" / "run.html")
    text = page.read_text(encoding="utf-8")
    assert "Loss by epoch" in text
    assert "wide_resnet(depth=10, width=1)" in text
    assert write_report(tmp_path) == []
    assert read_yaml(tmp_path / "run" / "config.yaml")["epochs"] == 2
