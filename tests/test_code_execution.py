"""Every place in the three packages that can run code is in the table of SECURITY.md, with the reason why it may."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import normless

ROOT = Path(normless.__file__).parents[1]
SECURITY = ROOT / "SECURITY.md"
# Functions that run what a text or a file says, by their name or the end of it.
_FUNCTIONS = {
    *("__import__", "import_module", "exec_module", "load_module", "resolve_name", "spec_from_file_location"),
    *("run_module", "run_path", "Popen", "check_call", "check_output", "getoutput", "popen", "read_pickle"),
}
# Names that are others' as attributes, as network.eval().
_BUILT_IN = {"eval", "exec", "compile"}
# Functions of these names by what they belong to.
_MEMBERS = {
    "pickle": {"load", "loads", "Unpickler"},
    "torch": {"load"},
    "fabric": {"load"},
    "np": {"load"},
    "point": {"load"},
    "shelve": {"open"},
    "joblib": {"load"},
    "marshal": {"load", "loads"},
    "yaml": {"load", "load_all", "full_load", "unsafe_load"},
    "os": {"system", "execv", "execvp", "spawnv"},
    "subprocess": {"run", "call"},
}


@cache
def trees() -> dict[str, ast.AST]:
    """The files of the three packages, parsed."""
    files = [
        path for package in ("normless", "normless_lab", "normless_papers") for path in (ROOT / package).rglob("*.py")
    ]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in files}


def running_code(tree: ast.AST) -> Iterator[str]:
    """The functions in a file that can run code, as ``exec`` or ``torch.load``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _FUNCTIONS | _BUILT_IN:
            yield node.id
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if node.attr in _FUNCTIONS:
                yield node.attr
            elif node.attr in _MEMBERS.get(owner, ()):
                yield f"{owner}.{node.attr}"


def test_every_place_that_can_run_code_is_in_the_table() -> None:
    listed = {
        (file, call)
        for file, calls in re.findall(r"^\| `([\w/]+\.py)` \| ([^|]+) \| [^|]{10,} \|$", SECURITY.read_text(), re.M)
        for call in re.findall(r"`([\w.]+)`", calls)
    }
    found = {(file, call) for file, tree in trees().items() for call in running_code(tree)}
    assert found == listed


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("import importlib\nimportlib.import_module(name)", ["import_module"]),
        ("pickle.Unpickler(file).load()", ["pickle.Unpickler"]),
        ("exec(compile(text, '', 'exec'))", ["exec", "compile"]),
        ("network.eval()\nmodule.compile()\nre.compile(text)", []),
    ],
)
def test_such_functions_are_found(text: str, calls: list[str]) -> None:
    assert [*running_code(ast.parse(text))] == calls


def test_weights_are_loaded_without_unpickling() -> None:
    calls = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    loads = [call for call in calls if ast.unparse(call.func) in ("torch.load", "fabric.load")]
    assert loads
    assert all("weights_only=True" in map(ast.unparse, call.keywords) for call in loads)
