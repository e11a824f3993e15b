"""``normless --completion``: the script for bash is read by bash, and completes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import normless as nl
from normless.cli._commands import COMMANDS
from normless_lab.cli._completion import completion_script
from normless_lab.data import DATA

BASH = shutil.which("bash")
# What bash does at a tab: the words so far, and the function that is registered for the program.
AT_TAB = """
source "$1"; shift
COMP_WORDS=(normless "$@"); COMP_CWORD=$#
registered=$(complete -p normless | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$registered normless "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "normless"
    path.write_text(completion_script("bash"))
    return path


@pytest.mark.skipif(BASH is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("",), {name.partition(".")[0] for name in COMMANDS if name[0] != "-"}),
        (("sweep", ""), {"run", "status", "export", "retry", "prune"}),
        (("train", "--label-s"), {"--label-smoothing"}),
        (("train", "--device", ""), {"auto", "cpu", "cuda"}),
        (("train", "--scheme", "zeroi"), {"zeroinit", "zeroinit_v1"}),
        (("convert", "net.py:net", "--scheme", ""), set(nl.SCHEMES)),
        (("probe", "net.py:net", "--data", "cifar"), {name for name in DATA if name.startswith("cifar")}),
        (("sweep", "run", "dep"), {"depth.yaml"}),
        (("train", "--config", "dep"), {"depth.yaml"}),
    ],
)
def test_bash_completes(words: tuple[str, ...], offered: set[str], script: Path, tmp_path: Path) -> None:
    (tmp_path / "depth.yaml").touch()
    command = [str(BASH), "--norc", "-c", AT_TAB, "bash", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""
    assert {*done.stdout.split()} - {"-h", "--help", "--version"} == offered
