"""Errors on the command line: a sentence, the traceback of a file of the user's own, or with --debug all of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from normless.cli import main
from normless_lab.sweeps import RateGrid

OWN = """
import torch

def broken(width=3):
    return helper(width)

def helper(width):
    raise KeyError("no width")

def of_two(first, second):
    return torch.nn.Linear(first, second)

def ends():
    raise SystemExit(3)
"""
# 9^9 values, in 341 bytes and less.
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "kind"), [("broken", "KeyError"), ("ends", "SystemExit")])
def test_an_error_in_a_file_of_the_user_is_its_own_traceback(
    name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"mine.py:{name}"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    frames = [line for line in said.splitlines() if line.lstrip().startswith("File ")]
    assert f"in {name}" in frames[0]
    assert all("mine.py" in frame for frame in frames)
    assert said.splitlines()[-1].startswith(f"normless: an error in your file, {kind}: ")


def test_any_other_error_is_a_sentence_that_asks_for_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(namespace: object) -> int:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("normless.cli.listing.run", fails)
    assert main(["list"]) == 1
    said = capsys.readouterr().err
    assert said == "normless: an unexpected RuntimeError: two lines; normless --debug COMMAND … shows where.\n"
    assert main(["list", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def _of_torch() -> None:
    torch.empty(10**15)


def _of_python() -> None:
    raise MemoryError


def _of_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the documentation.")


@pytest.mark.parametrize(
    ("fails", "said"), [(_of_torch, "can't allocate memory"), (_of_python, "in use"), (_of_a_gpu, "2 GiB")]
)
def test_a_lack_of_memory_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fails: Callable[[], None], said: str
) -> None:
    monkeypatch.setattr("normless.cli.listing.run", lambda _: fails())
    assert main(["list"]) == 1
    sentence = capsys.readouterr().err
    assert sentence.startswith("normless: there is not enough memory (")
    assert said in sentence
    assert sentence.endswith("or a smaller batch.\n")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["inspect", "mine.py:of_two(first=2)"], "needs second"),
        (["inspect", "mine.py:of_two(first=2, third=3)"], "does not take third"),
        (["inspect", "normless:dense(depth=1000000000)"], "at most 1,000,000"),
        (["inspect", "transformers:bert(num_hidden_layers=1000000000)"], "at most 1,000,000"),
        (["inspect", "normless:dense", "--image", "3", "1000000", "1000000"], "at most 268,435,456"),
        (["inspect", f"normless:dense(depth={'(' * 400})"], "Expected NAME or NAME(key=value, …)"),
        (["inspect", "normless:dense", "--classes", "-1"], "Expected 1 or more classes of normless:dense, got -1."),
        (
            ["probe", "normless:dense", "--batch-size", "1000000000"],
            "Expected a --batch-size of at most 268,435,456 numbers, got 1000000000",
        ),
        (["probe", "normless:dense", "--data", "digits(train='all')"], "train is a whole number"),
        (["train", "--config", "bomb.yaml"], "Expected YAML without aliases"),
        (["sweep", "status", "bomb.yaml"], "at most 100,000 values"),
    ],
)
def test_what_would_fill_the_memory_is_refused(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bomb.yaml").write_text(BOMB)
    before = sorted(folder.rglob("*"))
    assert main(words) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1
    assert sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts) == before


@pytest.mark.parametrize("ends", [{"from": -(10**9), "to": 0}, {"from": 0, "to": 5000}])
def test_exponents_beyond_the_floats_are_refused(ends: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"from 2\^-1000 to 2\^1000"):
        RateGrid.from_value(ends)
    assert RateGrid.powers(-1000, -999).rates == (2.0**-1000, 2.0**-999)


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["train", "--out", ""],
            ["train", "--out="],
            ["convert", "normless:dense", "--scheme", "none", "--out", ""],
        ),
        *(["sweep", "run", ""], ["watch", ""], ["reproduce", "--all", "--out", ""], ["report", "x", "--page", ""]),
    ],
)
def test_an_empty_text_is_no_path(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "Expected a path as" in capsys.readouterr().err
