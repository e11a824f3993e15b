"""A restart that is killed at any move of a file, and repeated or not, loses no run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from run_helpers import Interrupt

from normless_lab.train import RunResult, TrainConfig, train

FIRST = TrainConfig(
    model="normless:dense(depth=2, width=8)", data="digits(train=64, test=32)", batch_size=32, epochs=1, device="cpu"
)
SECOND = replace(FIRST, scheme="skipinit")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    directory = tmp_path_factory.mktemp("first")
    return directory, train(FIRST, directory)


def _killed_at(change: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Restart by the second configuration, interrupted at so many moves or removals; whether there are as many."""
    left = change

    def counted(function: Any) -> Any:
        def call(*args: Any, **keywords: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return function(*args, **keywords)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", counted(Path.rename))
        patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
        try:
            train(SECOND, directory, resume=False)
        except KeyboardInterrupt:
            return True
    return False


def test_the_former_run_survives(
    tmp_path: Path, first: tuple[Path, RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    for change in count():
        repeated, resumed = (tmp_path / f"{name}{change}" for name in ("repeated", "resumed"))
        for directory in (repeated, resumed):
            shutil.copytree(first[0], directory)
            # Of an earlier restart.
            shutil.copytree(first[0], directory / "former")
            (directory / "former" / "earlier").touch()
            killed = _killed_at(change, directory, monkeypatch)
        config = resumed / "config.yaml"
        if not killed or (config.exists() and f"scheme: {SECOND.scheme}" in config.read_text()):
            break
        if config.exists():
            assert train(FIRST, resumed) == first[1]
            assert (resumed / "former" / "earlier").exists()
        train(SECOND, repeated, resume=False)
        assert train(FIRST, repeated / "former") == first[1]
        assert train(SECOND, repeated).config_hash == SECOND.hash
        assert not (repeated / "former" / "earlier").exists()
    assert change > 5


def test_a_restart_that_ended_before_its_first_checkpoint_is_repeated(
    tmp_path: Path, first: tuple[Path, RunResult]
) -> None:
    shutil.copytree(first[0], tmp_path, dirs_exist_ok=True)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(SECOND, tmp_path, resume=False, listeners=[Interrupt(1)])
    train(SECOND, tmp_path, resume=False)
    assert train(FIRST, tmp_path / "former") == first[1]
