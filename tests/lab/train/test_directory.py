"""The folder of a run: what is told of damage, edits, other runs and other files, and that no run is lost."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from run_helpers import Interrupt, without_seconds

from normless.saving import Digests
from normless_lab.train import RunResult, TrainConfig, train, trained_network
from normless_lab.train._directory import RunDirectoryError

# Two steps an epoch.
CONFIG = TrainConfig(
    model="normless:dense(depth=2, width=128)",
    data="digits(train=64, test=32)",
    batch_size=32,
    epochs=3,
    schedule="constant",
    device="cpu",
)
OTHER = replace(CONFIG, scheme="skipinit")
NETWORK = """
from torch import nn


def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, 10))
"""


def begin(folder: Path, config: TrainConfig = CONFIG) -> None:
    """Train two of three epochs."""
    with pytest.raises(KeyboardInterrupt):
        train(config, folder, listeners=[Interrupt(5)])


def refused(folder: Path, words: str, config: TrainConfig = CONFIG, **how: Any) -> None:
    with pytest.raises(RunDirectoryError, match=words):
        train(config, folder, **how)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(CONFIG, folder)


@pytest.fixture
def copy(tmp_path: Path, whole: tuple[Path, RunResult]) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "copy"))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("begun")
    begin(folder)
    return folder


def test_truncated_checkpoints_are_one_sentence(tmp_path: Path, begun: Path) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) // 2])
    before = {one.name for one in tmp_path.iterdir()}
    damaged = r"checkpoint\.pt is damaged: it is not as the run wrote it"
    refused(tmp_path, damaged)
    with pytest.raises(RunDirectoryError, match=damaged):
        trained_network(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} >= before


@pytest.mark.parametrize("text", [None, "", "{}", "{"])
def test_a_run_without_digests_is_damaged(tmp_path: Path, begun: Path, text: str | None) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    (tmp_path / "digests.json").unlink() if text is None else (tmp_path / "digests.json").write_text(text)
    refused(tmp_path, r"contents\.json is damaged: it is not as the run wrote it")
    with pytest.raises(RunDirectoryError, match=r"checkpoint\.pt is damaged: it is not as the run wrote it"):
        trained_network(tmp_path)


def test_a_checkpoint_of_another_network_is_one_sentence(tmp_path: Path, begun: Path) -> None:
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    for stored in ({}, [], {"network": {}}, {"network": {"weight": torch.ones(2)}}, {"network": 3}):
        with Digests(tmp_path).replaced(tmp_path / "checkpoint.pt") as part:
            torch.save(stored, part)
        with pytest.raises(RunDirectoryError, match=r"checkpoint\.pt is not a checkpoint of this run"):
            trained_network(tmp_path)
        refused(tmp_path, r"checkpoint\.pt is not a checkpoint of this run")


@pytest.mark.parametrize("name", ["result.json", "epochs.parquet", "steps.parquet"])
def test_other_damaged_files_are_told(tmp_path: Path, begun: Path, whole: tuple[Path, RunResult], name: str) -> None:
    shutil.copytree(whole[0] if name == "result.json" else begun, tmp_path, dirs_exist_ok=True)
    data = bytearray((tmp_path / name).read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / name).write_bytes(data)
    refused(tmp_path, re.escape(name) + " is damaged")
    if name != "result.json":
        (tmp_path / name).unlink()
        refused(tmp_path, re.escape(name) + " is damaged")
    assert without_seconds(train(CONFIG, tmp_path, resume=False)) == without_seconds(whole[1])


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_does_not_go_on_by_settings_that_were_edited(
    finished: bool, tmp_path: Path, begun: Path, whole: tuple[Path, RunResult]
) -> None:
    shutil.copytree(whole[0] if finished else begun, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "config.yaml"
    written = file.read_text()
    file.write_text(yaml.safe_dump(yaml.safe_load(written) | {"rate": 0.05}))
    for config in (TrainConfig(**yaml.safe_load(file.read_text())), CONFIG):
        refused(tmp_path, r"config\.yaml was edited", config)
    file.write_text(written)
    assert train(CONFIG, tmp_path).config_hash == CONFIG.hash


def test_another_run_is_refused_but_the_place_of_the_data_and_comments_are_no_settings(
    copy: Path, whole: tuple[Path, RunResult]
) -> None:
    refused(copy, r"another run: rate is 0\.1 there and 0\.5 here, seed is 0", replace(CONFIG, rate=0.5, seed=3))
    assert train(replace(CONFIG, data_root=str(copy)), copy) == whole[1]
    file = copy / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"data_root": "elsewhere"}) + "# by hand\n")
    assert train(CONFIG, copy) == whole[1]


def test_starting_over_with_a_mistake_leaves_the_run(copy: Path, whole: tuple[Path, RunResult]) -> None:
    with pytest.raises(ValueError, match=r"resnet_cifer"):
        train(replace(CONFIG, model="normless:resnet_cifer(depth=8)"), copy, resume=False)
    assert train(CONFIG, copy) == whole[1]
    other = train(OTHER, copy, resume=False)
    assert train(OTHER, copy) == other
    assert train(CONFIG, copy / "former") == whole[1], "the former run is whole"


def test_starting_over_touches_the_files_of_the_run_alone(copy: Path, tmp_path: Path) -> None:
    (copy / "notes.txt").write_text("mine")
    (copy / "checkpoint.pt.part").write_text("half")
    train(CONFIG, copy, resume=False)
    assert (copy / "notes.txt").read_text() == "mine"
    assert not (copy / "checkpoint.pt.part").exists()
    own = tmp_path / "own"
    (own / "probes").mkdir(parents=True)
    for name in ("probes/mine.txt", "movie.part"):
        (own / name).write_text("mine")
    refused(own, r"holds probes but no config\.yaml", resume=False)
    assert [(own / name).read_text() for name in ("probes/mine.txt", "movie.part")] == ["mine", "mine"]


def own_network(folder: Path, **changes: Any) -> TrainConfig:
    settings = {"model": f"{folder}/mine.py:network", "scheme": "as_written", **changes}
    return TrainConfig.from_dict(CONFIG.to_dict() | settings)


def test_a_changed_file_is_not_resumed(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(NETWORK.format(width=8))
    first = own_network(tmp_path)
    begin(tmp_path / "run", first)
    # The same text and another meaning: the weights fit, the network is another.
    file.write_text(NETWORK.format(width=8).replace("ReLU", "Tanh"))
    assert own_network(tmp_path).hash != first.hash
    refused(tmp_path / "run", r"another content of .*mine\.py, which has changed since then", own_network(tmp_path))
    file.write_text(NETWORK.format(width=8))
    assert own_network(tmp_path).hash == first.hash
    assert len(train(own_network(tmp_path), tmp_path / "run").epochs) == 3


def test_what_a_file_imports_of_its_own_folder_counts(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from width import WIDTH\n" + NETWORK.format(width=8))
    (tmp_path / "width.py").write_text("WIDTH = 8\n")
    importing = own_network(tmp_path).hash
    (tmp_path / "width.py").write_text("WIDTH = 16\n")
    assert own_network(tmp_path).hash != importing


@pytest.mark.parametrize("name", ["former", "tensorboard", "probes", "checkpoint.pt", "former.part"])
def test_nothing_is_written_or_removed_through_links(name: str, copy: Path, tmp_path: Path) -> None:
    """Of a run that others gave, restarted or resumed; the lock is free afterwards."""
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("mine")
    own = copy / name
    if own.exists():
        shutil.rmtree(own) if own.is_dir() else own.unlink()
    own.symlink_to(thesis)
    for how in ({"resume": False}, {}):
        refused(copy, rf"{name} is a link", **how)
    own.unlink()
    assert [path.name for path in thesis.iterdir()] == ["chapter.tex"]
    train(CONFIG, copy, resume=False)
