"""The layers of the two packages: what may import what, and that the core stands on its own."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import networkx

import normless
import normless_papers

HOMES = [Path(normless.__file__).parent, Path(normless_papers.__file__).parent]
FILES = sorted(path for home in HOMES for path in home.rglob("*.py"))

# Lowest first: a package may import those of the rows before it, and itself.
CORE = [
    {"deprecated"},
    {"digests", "lazy", "spec", "errors", "decay", "divergence", "initialization", "garbage", "random_states"},
    {"copying"},
    {"extras", "arguments"},
    {"registry"},
    {"nn"},
    {"lifting"},
    {"residual"},
    {"signal"},
    {"models", "edits", "folding"},
    {"schemes"},
    {"conversion"},
    {"optim", "probes", "recomputation", "saving", "compilation"},
    {"diagnosis"},
    {"integrations"},
]
ABOVE = [
    {"process"},
    {"data", "zoo"},
    {"train"},
    {"plots"},
    {"sweeps"},
    {"demo", "bench", "live"},
    {"cli"},
    {"normless_papers"},
]
LAYERS = [*CORE, *ABOVE]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def module_name(path: Path) -> str:
    """The dotted name of a file's module."""
    parts = [*path.with_suffix("").parts[len(HOMES[0].parent.parts) :]]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def package_of(module: str) -> str:
    """The row's entry that a module belongs to."""
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == "normless" else first


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a file but those that only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            yield from statements(node)


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Every import statement of a file, at its top or in a function: the module and the name taken from it."""
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield str(node.module), alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""


def ours(path: Path) -> Iterator[str]:
    """The modules of the two packages that a file imports."""
    for module, name in imports(path):
        if module.partition(".")[0] in ("normless", "normless_papers"):
            yield f"{module}.{name}" if f"{module}.{name}" in MODULES else module


def test_nothing_imports_upward() -> None:
    upward = [
        f"{module_name(path)} imports {target}"
        for path in FILES
        if (home := package_of(module_name(path))) not in ("", "__main__")
        for target in map(package_of, ours(path))
        if target not in ("", home) and RANK[target] >= RANK[home]
    ]
    assert upward == []


def test_no_circle_of_imports() -> None:
    graph = networkx.DiGraph(
        (name, target) for name, path in MODULES.items() for target in ours(path) if target != name
    )
    assert len(graph) > 100
    assert [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1] == []


def required(name: str, *, extra: str | None = None) -> set[str]:
    """The installed distributions that one requires, directly and through others, in canonical spelling."""
    names: set[str] = set()
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError:
        return names
    for line in lines:
        requirement, _, marker = line.partition(";")
        match = re.match(r"([\w.-]+)\s*(?:\[([\w, .-]+)\])?", requirement)
        assert match is not None
        asked = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if asked is not None and asked[1] != extra:
            continue
        other = canonical(match[1])
        if other not in names and other != canonical(name):
            names |= {other} | required(other)
            for part in (match[2] or "").replace(" ", "").split(","):
                names |= required(other, extra=part) if part else set()
    return names


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def modules_outside_the_core() -> list[str]:
    """Importable modules of the environment that a plain installation of normless does not bring."""
    core = required("normless") | {"normless"}
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if not {canonical(owner) for owner in owners} & core and not module.startswith("_")
    )


CORE_WORK = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)
    def find_distributions(self, *context):
        return getattr(self.finder, "find_distributions", lambda *_: ())(*context)
sys.meta_path[:] = map(Without, sys.meta_path)
import pathlib, tempfile, torch, normless as nl
from normless.models import resnet_cifar
model, x, y = resnet_cifar(8), torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
print(nl.residual_map(model, x))
for scheme in ("skipinit", "fixup", "zeroinit", "nf_resnet", "group_norm"):
    assert nl.plan(model, scheme, x)
    net = nl.convert(model, scheme, x)
nl.param_groups(net, lr=0.1, weight_decay=5e-4)
assert len(nl.probe(net, (x, y)).tables) == 4
assert nl.diagnose(net, (x, y)) is not None
nl.fold(model.eval(), x)
with tempfile.TemporaryDirectory() as folder:
    nl.save(net, folder)
    nl.load(folder, model=model)
    file = pathlib.Path(folder, "mine.py")
    file.write_text("from normless.models import resnet_cifar\\ndef net(): return resnet_cifar(8)\\n")
    from normless.cli import main
    assert main(["inspect", f"{file}:net"]) == 0
    assert main(["convert", f"{file}:net", "--scheme", "fixup", "--out", f"{folder}/converted"]) == 0
    assert main(["train", "--epochs", "1"]) == 2
    assert main(["--help"]) == 0
    assert main(["trian"]) == 2
for package in ("train", "sweeps", "plots"):
    try:
        __import__(f"normless.{package}")
    except nl.errors.MissingExtraError as error:
        assert f"pip install 'normless[{package}]'" in str(error), error
    else:
        raise AssertionError(package)
"""


def test_the_core_works_without_the_extras() -> None:
    blocked = modules_outside_the_core()
    assert {"sklearn", "matplotlib", "lightning_fabric", "sqlalchemy", "scipy", "pydantic"} <= set(blocked)
    assert not {"torch", "pandas", "rich", "yaml"} & set(blocked)
    code = f"BLOCKED = {blocked!r}\n{CORE_WORK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pip install 'normless[train]'" in done.stderr
    assert re.search(
        r"^  reproduce +Reproducing the papers needs .* pip install 'normless\[papers\]'", done.stdout, re.M
    )
