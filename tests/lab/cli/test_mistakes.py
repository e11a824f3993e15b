"""Errors on the command line: a sentence and a code, the traceback of the user's own file, or with --debug all."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from normless.cli import main
from normless_lab.train._pauses import TerminatedError, TimeLimitError

Capture = pytest.CaptureFixture[str]
OWN = """
import torch

def broken(width=3):
    return helper(width)

def helper(width):
    raise KeyError("no width")

def of_two(first, second):
    return torch.nn.Linear(first, second)

"""
# 9^9 values, in 341 bytes and less.
MERGE = "a0: &a0 {x: 1}\n" + "\n".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40))
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
SWEEP = "name: s\nbase: {scheme: none, epochs: 1}\naxes:\n  scheme: [skipinit, fixop]\nrates: [0.1]\n"
NULL = r'out: "a\0b"'
DEEP = "model: " + "[" * 100_000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "mine.py": OWN,
        "bomb.yaml": BOMB,
        "merge.yaml": MERGE,
        "deep.yaml": DEEP,
        "null.yaml": NULL,
        "sweep.yaml": SWEEP,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


MISTAKES = [
    ("sweep statu", "'sweep statu' is not a command. Did you mean sweep status?"),
    ("sweep run", "see normless sweep run --help."),
    ("sweep run nowhere.yaml", "nowhere.yaml"),
    ("sweep export nowhere.yaml runs.txt", "Expected a file of name .parquet or .csv to write to"),
    ("zzz", "'zzz' is not a command. The commands are inspect, convert, probe, diagnose, list, "),
    ("demo --wrokers 2", "unrecognized arguments: --wrokers 2 (Did you mean --workers?); see"),
    ("convert normless:dense --scheme none", "Expected --out; see normless convert --help."),
    ("train --config absent.yaml", "absent.yaml'; see normless train --help."),
    ("train --device gpu", "Got value: gpu; see normless train --help."),
    ("demo --device gpu --out out", "gpu"),
    ("inspect resnet", "FILE.py:FUNCTION or the folder of a saved network, got 'resnet'"),
    ("inspect nowhere.py:model", "There is no file nowhere.py"),
    ("inspect normless:dense --image 1 0 8", "got 1 0 8"),
    ("inspect mine.py:of_two(first=2)", "needs second"),
    # What would fill the memory.
    ("inspect normless:dense(depth=1000000000)", "at most 1,000,000"),
    ("inspect transformers:bert(num_hidden_layers=1000000000)", "at most 1,000,000"),
    ("inspect normless:dense --image 3 1000000 1000000", "at most 268,435,456"),
    (f"inspect normless:dense(depth={'(' * 400})", "Expected NAME or NAME(key=value, …)"),
    ("probe normless:dense --batch-size 1000000000", "--batch-size of at most 268,435,456 numbers, got 1000000000"),
    ("""probe normless:dense --data "digits(train='all')" """, "train is a whole number"),
    ("train --config bomb.yaml", "Expected YAML without aliases"),
    ("sweep status bomb.yaml", "without aliases"),
    ("sweep status merge.yaml", "without aliases"),
    ("train --config deep.yaml", "YAML of at most 50 levels"),
    ("sweep status deep.yaml", "YAML of at most 50 levels"),
    ("convert normless:dense --scheme none --out out --seed 1e40", "seed"),
    ("convert normless:dense --scheme none --out out --seed 99999999999999999999", "from 0 to 2^63"),
    ("train --seed 99999999999999999999", "from 0 to 2^63"),
    ("inspect a\0b", r"Expected arguments without null bytes, got 'a\x00b'"),
    ("train --config null.yaml", "without null bytes"),
    # An empty text is no path.
    ("train --out ''", "Expected a path as"),
    ("sweep run ''", "Expected a path as"),
    # Names of other libraries.
    ("inspect torchvision:resnt18", "torchvision has no model 'resnt18'. Did you mean resnet18?"),
    ("train --task text --model transformers:bret", "transformers has no kind of model 'bret'. Did you mean bert?"),
    ("convert torchvison:resnet18 --scheme none --out nowhere", "Did you mean torchvision?"),
]


@pytest.mark.parametrize(("words", "said"), MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(words: str, said: str, folder: Path, capsys: Capture) -> None:
    before = sorted(folder.rglob("*"))
    assert main(shlex.split(words)) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith("normless: ")
    # Versions of jsonargparse begin a message by a capital letter or not.
    assert said.lower() in printed.err.lower()
    assert sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts) == before


MISSPELT = {
    "train --scheme fixop": "There is no scheme 'fixop'",
    "train --model normless:wide_resnt(depth=16)": "Did you mean wide_resnet?",
    "train --data digit": "Did you mean digits?",
    "probe normless:dense --probes signl": "Did you mean signal?",
    "convert normless:dense --scheme fixop(gain=0.1)+ZeroClassifier() --out nowhere": "Did you mean fixup?",
    "inspect normless:dnse": "Did you mean dense?",
    "reproduce fixup/tabel-1": "Did you mean fixup/table-1",
    "sweep run sweep.yaml": "Did you mean fixup?",
    "inspekt normless:dense": "Did you mean inspect?",
    "list shcemes": "Did you mean schemes?",
}
SCRIPT = """
import sys
from normless.cli import main
for line in sys.stdin.read().splitlines():
    assert main(line.split()) == 2, line
"""


def test_misspelt_names_are_refused(folder: Path) -> None:
    before = {*folder.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input="\n".join(MISSPELT), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all(line.startswith("normless: ") for line in lines)
    for line, said in zip(lines, MISSPELT.values(), strict=True):
        assert said in line
    assert {*folder.iterdir()} == before


@pytest.mark.usefixtures("folder")
def test_an_error_in_a_file_of_the_user_is_its_own_traceback(capsys: Capture) -> None:
    assert main(["inspect", "mine.py:broken"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    frames = [line for line in said.splitlines() if line.lstrip().startswith("File ")]
    assert "in broken" in frames[0]
    assert all("mine.py" in frame for frame in frames)
    assert said.splitlines()[-1].startswith("normless: an error in your file, KeyError: ")


def raising(error: BaseException | None) -> Callable[..., int]:
    def run(*_: object) -> int:
        if error is not None:
            raise error
        return 0

    return run


def of_torch() -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    return caught.value


UNEXPECTED = "normless: an unexpected RuntimeError: two lines; normless --debug COMMAND … shows where.\n"
LACK = r"normless: there is not enough memory \(.*{}.*or a smaller batch\.\n"
GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the documentation.")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (RuntimeError("two\nlines"), 1, re.escape(UNEXPECTED)),
        (of_torch(), 1, LACK.format("can't allocate memory")),
        (MemoryError(), 1, LACK.format("in use")),
        (GPU, 1, LACK.format("2 GiB")),
        (ValueError("a mistake"), 2, "normless: a mistake.*\n"),
        (TimeLimitError("The run reached its time limit."), 75, "normless: The run reached its time limit.*\n"),
        (KeyboardInterrupt(), 130, r"normless: interrupted\.\n"),
        (TerminatedError("The run was told to end."), 143, "normless: The run was told to end.*\n"),
    ],
)
def test_every_documented_code_occurs_with_its_sentence(
    error: BaseException | None, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("normless.cli._listing.run", raising(error))
    assert main(["list"]) == code
    assert re.fullmatch(said, capsys.readouterr().err)
    if said == re.escape(UNEXPECTED):
        assert main(["list", "--debug"]) == 1
        assert "Traceback" in capsys.readouterr().err
