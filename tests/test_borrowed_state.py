"""What Python and torch keep once per process changes only where other threads are kept out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("normless", "normless_lab", "normless_papers")
# Calls that change it, by their last names; `seed` and the like are those of global generators.
CHANGES = {
    *("catch_warnings", "simplefilter", "filterwarnings", "redirect_stdout", "redirect_stderr"),
    *("fork_rng", "set_rng_state", "setstate", "random.set_state", "torch.manual_seed", "random.seed"),
    *("default_generator.manual_seed", "set_default_dtype", "set_default_device", "set_float32_matmul_precision"),
    *("set_fastpath_enabled", "set_stance", "cudnn.flags", "gc.disable", "gc.enable", "sys.path.insert"),
    *("set_verbosity_error", "disable_progress_bar", "use_deterministic_algorithms", "_use_lazy_graph_module"),
    *("register_optimizer_step_pre_hook", "register_optimizer_step_post_hook", "patch.object"),
    *("os.chdir", "os.umask"),
}
# Where else it changes, by file, and why that is safe.
ELSEWHERE = {
    "normless/probes/dependence/_mixing.py": "parts of `mixes_examples`, which has the lock",
    "normless/doctor/rules/_examples.py": "a part of `diagnose`, within preserve_random_state",
    "normless/doctor/facts/_tracer.py": "a part of `diagnose` or, with the lock, of a watch",
    "normless/saving/_state.py": "a part of `save`, within `running`",
    "normless_lab/train/_turns.py": "within `entered`",
    "normless_lab/train/_loop.py": "a part of a turn, which has the lock",
    "normless_lab/train/_task.py": "a part of a turn, or within preserve_random_state",
    "normless_lab/data/_image_files.py": "within preserve_random_state",
    "normless_papers/networks/seeded_inputs.py": "within preserve_random_state",
    "normless_papers/probes/network_function.py": "within preserve_state",
    "normless_papers/probes/summands.py": "the work of a command or of a worker process",
    "normless/cli": "a command is a process of its own",
    "normless_lab/bench": "a command",
    "normless_lab/cli/_demo.py": "a command",
    "normless_papers/cli": "a command",
    "normless_papers/results/reproduce.py": "the work of a command or of a worker process",
}


def dotted(node: ast.expr) -> str:
    """The name of what is called, with those before its dots."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def changes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The lines of calls that change such state outside of functions that have the lock, and their names."""

    def walk(node: ast.AST, locked: bool) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.FunctionDef):
            locked |= any(dotted(decorator) in ("exclusive", "borrowing") for decorator in node.decorator_list)
        if isinstance(node, ast.Call) and not locked:
            name = dotted(node.func)
            if any(f".{name}".endswith(f".{known}") for known in CHANGES):
                yield node.lineno, name
        for child in ast.iter_child_nodes(node):
            yield from walk(child, locked)

    return walk(tree, False)


def of_file(file: str) -> str | None:
    """Why a file may change it, or None."""
    return next((why for name, why in ELSEWHERE.items() if file == name or file.startswith(f"{name}/")), None)


def test_only_functions_with_the_lock_change_what_a_process_has_once() -> None:
    found: list[str] = []
    used = set[str]()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            file = path.relative_to(ROOT).as_posix()
            for line, name in changes(ast.parse(path.read_text("utf-8"))):
                used |= {known for known in ELSEWHERE if file == known or file.startswith(f"{known}/")}
                if of_file(file) is None:
                    found.append(f"{file}:{line}: {name}")
    assert found == []
    assert used == {*ELSEWHERE}
