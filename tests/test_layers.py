"""The layers of the three packages: what may import what, and that the core stands on its own."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions, packages_distributions
from pathlib import Path

import networkx
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import normless
import normless_lab
import normless_papers

HOMES = [Path(package.__file__).parent for package in (normless, normless_lab, normless_papers)]
FILES = sorted(path for home in HOMES for path in home.rglob("*.py"))

# Lowest first: a package may import those of the rows before it, and itself.
LIBRARY = [
    {"_version", "spec", "errors", "exclusive", "plain_yaml"},
    {"_internal", "extras"},
    {"code_names", "state"},
    {"lazy"},
    {"registry"},
    {"nn"},
    {"recording"},
    {"lifting"},
    {"residual"},
    {"signal"},
    {"models"},
    {"edits"},
    {"affine"},
    {"schemes"},
    {"conversion"},
    {"optim", "probes", "saving", "_convert_trained"},
    {"doctor"},
    {"integrations", "plotting", "testing"},
    {"cli"},
]
LABORATORY = [
    {"process"},
    {"data"},
    {"train"},
    {"plots"},
    {"sweeps"},
    {"bench", "live"},
    {"cli"},
]
LAYERS = [
    *({f"normless.{name}" for name in names} for names in LIBRARY),
    {"normless"},
    {"normless.__main__"},
    {"normless_lab"},
    *({f"normless_lab.{name}" for name in names} for names in LABORATORY),
    {"normless_papers"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def module_name(path: Path) -> str:
    """The dotted name of a file's module."""
    parts = [*path.with_suffix("").parts[len(HOMES[0].parent.parts) :]]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def layer_of(module: str) -> str:
    """The row's entry that a module belongs to."""
    package, *rest = module.split(".")
    return package if package == "normless_papers" or not rest else f"{package}.{rest[0]}"


# As `importlib` and entry points read it.
_NAMING = re.compile(r"(?:normless|normless_lab|normless_papers)(?:\.\w+)+(?::\w+)?|normless_lab|normless_papers")


def names_module(text: str) -> bool:
    """Whether a text is the name of a module of ours, or MODULE:NAME."""
    return _NAMING.fullmatch(text) is not None and (":" in text or text in MODULES)


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports: at its top, in functions, on first use, and by their names in texts."""
    stub = path.with_suffix(".pyi")
    for line in ast.parse(stub.read_text(encoding="utf-8")).body if stub.exists() else ():
        assert isinstance(line, ast.ImportFrom)
        yield from (f"{module_name(path)}.{line.module or alias.name}" for alias in line.names)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name their module in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and names_module(node.value):
            yield node.value.replace(":", ".")


def module_of(name: str) -> str:
    """The module of ours that a dotted name names, or that has what it names; empty if it is not ours."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


NAMED = {name: {*imports(path)} for name, path in MODULES.items()}
IMPORTS = {name: {*map(module_of, targets)} - {"", name} for name, targets in NAMED.items()}


def test_nothing_imports_upward() -> None:
    upward = [
        f"{name} imports {target}"
        for name, targets in IMPORTS.items()
        for target in targets
        if layer_of(name) != layer_of(target) and RANK[layer_of(target)] >= RANK[layer_of(name)]
    ]
    assert upward == []


def test_no_house_imports_a_private_file_of_another() -> None:
    crossing = [
        f"{name} imports {target}"
        for name, targets in IMPORTS.items()
        for target in targets
        if name.partition(".")[0] != target.partition(".")[0] and "._" in target
    ]
    assert crossing == []


def test_no_circle_of_imports() -> None:
    graph = networkx.DiGraph((name, target) for name, targets in IMPORTS.items() for target in targets)
    assert len(graph) > 100
    assert [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1] == []


def modules_outside_the_core() -> list[str]:
    """Importable modules of the environment that a plain installation of normless does not bring."""
    known: dict[str, Distribution] = {canonicalize_name(one.metadata["Name"]): one for one in distributions()}
    core, waiting = set[tuple[str, str]](), [("normless", "")]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in core or name not in known:
            continue
        core.add((name, extra))
        for needed in map(Requirement, known[name].requires or ()):
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(needed.name), own) for own in ("", *needed.extras)]
    names = {name for name, _ in core}
    return sorted(
        module
        for module, owners in packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & names and not module.startswith("_")
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
from contextlib import redirect_stderr
from io import StringIO
from normless.cli._commands import COMMANDS, is_task
from normless.cli import main
told = {}
for name in COMMANDS:
    try:
        example = COMMANDS[name].example.split()[1:]
        if COMMANDS[name].module.startswith("normless."):
            continue
    except nl.errors.MissingExtraError:
        words = name.replace(".", " --task " if is_task(name) else " ")
        example = [*words.split(), "--help"]
    with redirect_stderr(StringIO()) as said:
        assert main(example) in (0, 2), name
    told[name] = said.getvalue()
try:
    nl.plot(nl.residual_map(model, x))
except nl.errors.MissingExtraError as error:
    told["normless.plot"] = str(error)
for package in ("normless", "normless.integrations", "normless.cli", "normless.models", *(
    f"normless_lab.{name}" for name in ("bench", "data", "live", "plots", "sweeps", "train")
), "normless_papers.probes"):
    try:
        module = __import__(package, fromlist=["x"])
    except nl.errors.MissingExtraError as error:
        told[package] = str(error)
        continue
    for name in getattr(module, "__all__", ()):
        try:
            getattr(module, name)
        except nl.errors.MissingExtraError as error:
            told[f"{package}.{name}"] = str(error)
unsaid = [name for name, said in told.items() if "pip install" not in said and name != "--completion"]
print("TOLD", *told)
assert not unsaid, (unsaid, told)
"""


def test_the_core_works_without_the_extras() -> None:
    blocked = modules_outside_the_core()
    assert {"sklearn", "matplotlib", "lightning_fabric", "sqlalchemy", "scipy", "pydantic"} <= set(blocked)
    assert not {"torch", "pandas", "rich", "yaml"} & set(blocked)
    code = f"BLOCKED = {blocked!r}\n{CORE_WORK}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "pip install 'normless[lab]'" in done.stderr
    assert re.search(
        r"^  reproduce +Reproducing the papers needs .* pip install 'normless\[lab\]'", done.stdout, re.M
    )
    told = set(done.stdout.rpartition("TOLD ")[2].split())
    assert {"demo", "train", "bench", "sweep.run", "watch", "report", "reproduce", "train.text"} <= told
    assert {
        "normless.plot",
        "normless_lab.train",
        "normless.integrations.prepare",
        "normless.integrations.LightningWatch",
    } <= told
    assert not {name for name in told if name.startswith(("normless.models", "normless.cli", "normless.convert"))}
