"""Commands in unusual environments do what they do elsewhere; without the extras is a test of the layers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LIMIT = 400
# A person's file that names no unusual character, and whose network has a name that does.
SWEEP = """
name: small
base: {model: "normless:wide_resnet(depth=10, width=1)", data: "digits(train=64, test=32)", epochs: 1, batch_size: 32}
axes: {scheme: [none, skipinit]}
rates: [0.05]
replicates: 1
"""
TRAIN = "train --data digits(train=64,test=32) --model normless:wide_resnet(depth=10,width=1) --scheme skipinit "
# Commands, and the files that they make.
COMMANDS: dict[str, str] = {
    "reproduce understanding-bn/figure-9 --out results": "",
    "inspect normless:resnet_cifar(depth=8) --json": "",
    "convert normless:resnet_cifar(depth=8) --scheme fixup --out converted": "converted/model.safetensors",
    TRAIN + "--epochs 1 --batch-size 32 --rate 0.05 --out run --json": "run/result.json",
    "sweep run small.yaml --workers 1 --out lab --page": "lab/index.html",
    "report results": "results/index.html",
}
# Variables of the environment, None for one that is unset, and redirections of the shell.
ENVIRONMENTS: dict[str, tuple[dict[str, str | None], str]] = {
    "usual": ({}, ""),
    # Nobody, not even root, can write below a file.
    "HOME read-only": ({"HOME": "small.yaml/home"}, ""),
    "ASCII": (
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
        "",
    ),
    "no terminal": ({"TERM": None, "COLUMNS": None}, "</dev/null"),
    "all three closed": ({}, "<&- >&- 2>&-"),
    "hash seed": ({"PYTHONHASHSEED": "1"}, ""),
}


def ended(command: str, place: Path, name: str) -> tuple[str, Any]:
    """Run a command in a folder; return what is wrong, if anything, and what must be the same everywhere."""
    changes, redirections = ENVIRONMENTS[name]
    variables = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    for variable, value in changes.items():
        variables.pop(variable, None)
        if value is not None:
            variables[variable] = value.replace("small.yaml", str(place / "small.yaml"))
    shell = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-m", "normless", *command.split()]
    alone = name == "no terminal"
    done = subprocess.run(
        shell, cwd=place, env=variables, capture_output=True, check=False, timeout=LIMIT, start_new_session=alone
    )
    printed, said = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    wrong = "TRACEBACK" if "Traceback" in printed + said else f"EXIT {done.returncode}" * (done.returncode != 0)
    file = place / (COMMANDS[command] or "nowhere")
    if file.suffix == ".json" and file.is_file():
        return wrong, re.sub(r'"[^"]*seconds[^"]*": [\d.e-]+', "", file.read_text("utf-8"))
    if COMMANDS[command]:
        return wrong, file.is_file() and (file.suffix == ".html" or file.read_bytes())
    # ASCII has escapes, and a closed stream nothing.
    return wrong, None if "closed" in name or name == "ASCII" else json.dumps(printed)


def rows(folder: Path) -> Iterator[tuple[str, str, str]]:
    """What is wrong in each environment with each command."""
    usual: dict[str, Any] = {}
    for name in ENVIRONMENTS:
        place = folder / name
        place.mkdir()
        (place / "small.yaml").write_text(SWEEP, encoding="utf-8")
        for command in COMMANDS:
            wrong, made = ended(command, place, name)
            same = made in (None, usual.setdefault(command, made))
            yield name, command, wrong or "ANOTHER RESULT" * (not same)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="uses a shell")
def test_commands_in_unusual_environments(tmp_path: Path) -> None:
    assert [row for row in rows(tmp_path) if row[2]] == []
