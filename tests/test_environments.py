"""Commands in unusual environments do what they do elsewhere, or say in a sentence why not.

``python tests/test_environments.py`` prints the table of environments × commands.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions, packages_distributions
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
COMMANDS: dict[str, str] = {
    "inspect": "inspect normless:resnet_cifar(depth=8) --json",
    "convert": "convert normless:resnet_cifar(depth=8) --scheme fixup --out converted",
    "diagnose": "diagnose normless:resnet_cifar(depth=8) --json",
    "train": TRAIN + "--epochs 1 --batch-size 32 --rate 0.05 --out run --json",
    "sweep": "sweep run small.yaml --workers 1 --out lab --page",
    "report": "report results",
    "demo": "demo --print",
}
MADE = {
    "convert": "converted/model.safetensors",
    "train": "run/result.json",
    "sweep": "lab/index.html",
    "report": "results/index.html",
}


@dataclass(frozen=True)
class Environment:
    """How a command is started.

    Attributes:
        variables: of the environment, None for one that is unset.
        redirections: of the shell.
        alone: whether the process has no terminal, by a session of its own.
        without: packages that cannot be imported.
    """

    variables: dict[str, str | None] = field(default_factory=dict)
    redirections: str = ""
    alone: bool = False
    without: tuple[str, ...] = ()


def extra_modules() -> tuple[str, ...]:
    """The modules here of packages that an installation without extras does not have."""
    known = {canonicalize_name(one.metadata["Name"]): one for one in distributions()}
    core, seen, waiting = set[str](), set[tuple[str, str]](), [("normless", "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) not in seen and name in known:
            seen.add((name, extra))
            core.add(name)
            waiting += required(known[name], extra)
    return tuple(
        sorted(
            module
            for module, owners in packages_distributions().items()
            if not {canonicalize_name(owner) for owner in owners} & core and not module.startswith("_")
        )
    )


def required(one: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """The names of the packages that another requires with an extra, or "", and each of their extras."""
    for text in one.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for own in ("", *requirement.extras):
                yield canonicalize_name(requirement.name), own


# Finds nothing, as where a package is not installed: `importlib.util.find_spec` is asked too.
BLOCK = """
import json, os, sys
NAMES = set(json.loads(os.environ.get("TESTS_WITHOUT", "[]")))
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in NAMES else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Hiding(finder) if hasattr(finder, "find_spec") else finder for finder in sys.meta_path]
"""

ENVIRONMENTS: dict[str, Callable[[Path], Environment]] = {
    "usual": lambda _: Environment(),
    # Nobody, not even root, can write below a file.
    "HOME read-only": lambda place: Environment({"HOME": str(place / "small.yaml" / "home")}),
    "TMPDIR read-only": lambda place: Environment({"TMPDIR": str(place / "small.yaml" / "tmp")}),
    "LANG=C, ASCII": lambda _: Environment(
        {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
    ),
    "no terminal": lambda _: Environment({"TERM": None, "COLUMNS": None}, "</dev/null", alone=True),
    "stdin closed": lambda _: Environment({}, "<&-"),
    "stdout closed": lambda _: Environment({}, ">&-"),
    "all three closed": lambda _: Environment({}, "<&- >&- 2>&-"),
    "without extras": lambda _: Environment(without=extra_modules()),
    "hash seed 1": lambda _: Environment({"PYTHONHASHSEED": "1"}),
    "hash seed 2": lambda _: Environment({"PYTHONHASHSEED": "2"}),
}


@dataclass(frozen=True)
class End:
    """How a command ended: its exit code, what it printed, and what it made that must be the same everywhere."""

    code: int
    printed: str
    said: str
    made: Any

    @property
    def verdict(self) -> str:
        """`done`, `refused` by a sentence, or what is wrong."""
        if "Traceback" in self.said or "Traceback" in self.printed:
            return "TRACEBACK"
        if self.code == 0:
            return "done"
        last = self.said.strip().rpartition("\n")[2]
        return "refused" if self.code == 2 and last.startswith("normless: ") else f"EXIT {self.code}"


def carried_out(name: str, place: Path, environment: Environment) -> End:
    """Carry out a command in a folder."""
    blocking = place / "site"
    blocking.mkdir(exist_ok=True)
    (blocking / "sitecustomize.py").write_text(BLOCK, encoding="utf-8")
    variables: dict[str, str] = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(blocking), str(ROOT)]),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "TESTS_WITHOUT": json.dumps(environment.without),
    }
    for variable, value in environment.variables.items():
        variables.pop(variable, None)
        if value is not None:
            variables[variable] = value
    words = [sys.executable, "-m", "normless", *COMMANDS[name].split()]
    shell = ["sh", "-c", f'exec "$@" {environment.redirections}', "sh", *words]
    done = subprocess.run(
        shell,
        cwd=place,
        env=variables,
        capture_output=True,
        check=False,
        timeout=LIMIT,
        start_new_session=environment.alone,
    )
    printed, said = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    return End(done.returncode, printed, said, made_by(name, place, printed))


def made_by(name: str, place: Path, printed: str) -> Any:
    """What a command must make in every environment: its file, or else what it printed, without times."""
    file = place / MADE.get(name, "nowhere")
    if name == "convert":
        return file.read_bytes() if file.is_file() else None
    if name == "train":
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        return re.sub(r'"[^"]*seconds[^"]*": [\d.e-]+', "", text)
    return file.is_file() if name in MADE else json.dumps(printed)


def prepared() -> Path:
    """A folder with what the commands read."""
    place = Path(mkdtemp(prefix="normless-environments-"))
    (place / "small.yaml").write_text(SWEEP, encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "normless", "reproduce", "understanding-bn/figure-9", "--out", "results"],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    return place


def told(end: End, usual: End, prints: bool) -> str:
    """The verdict of a command beside that of the usual environment."""
    compared = end.made == usual.made or not prints
    return end.verdict if end.verdict != "done" or compared else "ANOTHER RESULT"


def rows_of(names: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The verdicts of each environment by command."""
    usual: dict[str, End] = {}
    for name in ["usual", *(name for name in names if name != "usual")]:
        place = prepared()
        environment = ENVIRONMENTS[name](place)
        verdicts = {}
        for command in COMMANDS:
            end = carried_out(command, place, environment)
            usual.setdefault(command, end)
            # ASCII has escapes, and a closed stream nothing.
            prints = command in MADE or not ("closed" in name or "ASCII" in name)
            verdicts[command] = told(end, usual[command], prints)
        yield name, verdicts


# Those that need an extra say which.
REFUSED = {("without extras", command) for command in ("train", "sweep", "report", "demo")}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="uses a shell")
def test_commands_in_unusual_environments() -> None:
    wrong = [
        (name, command, verdict)
        for name, verdicts in rows_of([*ENVIRONMENTS])
        for command, verdict in verdicts.items()
        if verdict not in ("done", *(("refused",) if (name, command) in REFUSED else ()))
    ]
    assert wrong == []


if __name__ == "__main__":
    sys.stdout.write(f"{'':20}{''.join(f'{name:>16}' for name in COMMANDS)}\n")
    for row, cells in rows_of(sys.argv[1:] or [*ENVIRONMENTS]):
        sys.stdout.write(f"{row:20}{''.join(f'{cell:>16}' for cell in cells.values())}\n")
        sys.stdout.flush()
