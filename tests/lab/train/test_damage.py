"""What killed processes, full disks, damaged files and second processes do to a run: nothing goes unnoticed."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from run_helpers import Interrupt, without_seconds

from normless_lab.train import RunResult, TrainConfig, train, trained_network
from normless_lab.train.directory import RunDirectoryError

STEPS = 2  # 1437 digits in whole batches of 512
CONFIG = TrainConfig(
    model="normless:wide_resnet(depth=10, width=1)", batch_size=512, epochs=3, crop=0, flip=False, device="cpu"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    directory = tmp_path_factory.mktemp("whole")
    return directory, train(CONFIG, directory)


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("two_epochs")
    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, directory, listeners=[Interrupt(2 * STEPS + 1)])
    return directory


def flip_bit(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("kept", [0.0, 0.4, 0.99])
def test_truncated_checkpoints_are_one_sentence(tmp_path: Path, two_epochs: Path, kept: float) -> None:
    shutil.copytree(two_epochs, tmp_path, dirs_exist_ok=True)
    for name in ("checkpoint.pt", "checkpoint.previous.pt"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: int(kept * len(data))])
    before = {one.name for one in tmp_path.iterdir()}
    for read in (lambda: train(CONFIG, tmp_path), lambda: trained_network(tmp_path)):
        with pytest.raises(RunDirectoryError, match=r"checkpoint\.pt is damaged: it is not as the run wrote it"):
            read()
    assert {one.name for one in tmp_path.iterdir()} >= before
    # Of a run from before there were digests.
    (tmp_path / "digests.json").unlink()
    with pytest.raises(RunDirectoryError, match=r"checkpoint\.pt is not a checkpoint of this run"):
        train(CONFIG, tmp_path)


@pytest.mark.parametrize("name", ["result.json", "epochs.parquet", "steps.parquet"])
def test_other_damaged_files_are_told(
    tmp_path: Path, two_epochs: Path, whole: tuple[Path, RunResult], name: str
) -> None:
    shutil.copytree(whole[0] if name == "result.json" else two_epochs, tmp_path, dirs_exist_ok=True)
    flip_bit(tmp_path / name, 0.5)
    with pytest.raises(RunDirectoryError, match=re.escape(name) + " is damaged"):
        train(CONFIG, tmp_path)
    if name != "result.json":
        (tmp_path / name).unlink()
        with pytest.raises(RunDirectoryError, match=re.escape(name) + " is damaged"):
            train(CONFIG, tmp_path)
    result = train(CONFIG, tmp_path, resume=False)
    assert without_seconds(result) == without_seconds(whole[1])


def test_starting_over_with_a_mistake_leaves_the_run(tmp_path: Path, whole: tuple[Path, RunResult]) -> None:
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    for wrong in (
        replace(CONFIG, model="normless:resnet_cifer(depth=8)"),
        replace(CONFIG, scheme="skpinit"),
        replace(CONFIG, data="digit"),
    ):
        with pytest.raises(ValueError, match=r"resnet_cifer|skpinit|digit"):
            train(wrong, tmp_path, resume=False)
        assert train(CONFIG, tmp_path) == whole[1]
    other = train(replace(CONFIG, epochs=1), tmp_path, resume=False)
    assert train(replace(CONFIG, epochs=1), tmp_path) == other
    assert train(CONFIG, tmp_path / "former") == whole[1], "the former run is whole"


def test_starting_over_touches_no_folder_that_is_no_runs(tmp_path: Path) -> None:
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / "mine.txt").write_text("mine")
    (tmp_path / "movie.part").write_text("half")
    with pytest.raises(RunDirectoryError, match=r"holds probes but no config\.yaml"):
        train(CONFIG, tmp_path, resume=False)
    assert (tmp_path / "probes" / "mine.txt").read_text() == "mine"
    assert (tmp_path / "movie.part").read_text() == "half"
