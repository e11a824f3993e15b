"""The package itself: its public names, what importing it costs, that nothing imports upward."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import normless

ROOT = Path(__file__).parents[1]


def test_every_public_name_resolves() -> None:
    for name in normless.__all__:
        assert getattr(normless, name) is not None
    assert dir(normless) == sorted(normless.__all__)
    assert len(normless.__all__) <= 40
    with pytest.raises(AttributeError, match="No normless attribute nothing"):
        _ = normless.nothing


def test_public_names_are_few_and_documented() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    whole = re.findall(r"^::: (normless[\w.]*)$", page, re.MULTILINE)
    public = dict[str, object]()
    for path in ROOT.glob("normless*/**/*.py"):
        if "__all__" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            module = import_module(name)
            public |= {f"{name}.{own}": getattr(module, own) for own in getattr(module, "__all__", ())}
    # Some can be imported from two places.
    assert 100 < len({id(value) for value in public.values()}) <= 150
    for name, value in public.items():
        if isinstance(value, type) or inspect.isroutine(value):
            assert value.__doc__, name
        if not inspect.ismodule(value) and not name.endswith("__version__"):
            assert name in whole or name.rpartition(".")[0] in whole or f"`{name}`" in page, (
                f"{name} is not in docs/api.md"
            )


def test_import_brings_no_torch_and_convert_brings_little_more() -> None:
    code = (
        "import sys, normless; assert 'torch' not in sys.modules, 'import normless imports torch'\n"
        "import torch\n"
        "normless.convert, normless.param_groups\n"
        "heavy = {'sklearn', 'scipy', 'pandas', 'matplotlib', 'torchvision', 'lightning_fabric', 'pyarrow'}\n"
        "found = heavy & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_runs_as_a_module_as_torchrun_starts_it() -> None:
    command = [sys.executable, "-m", "normless"]
    assert subprocess.run([*command, "--version"], check=True, capture_output=True, text=True).stdout == (
        f"normless {normless.__version__}\n"
    )
    assert subprocess.run([*command, "nothing"], check=False, capture_output=True).returncode == 2
