"""The package itself: its public names, what importing it costs, that nothing imports upward."""

from __future__ import annotations

import subprocess
import sys

import pytest

import normless


def test_every_public_name_resolves() -> None:
    for name in normless.__all__:
        assert getattr(normless, name) is not None
    assert dir(normless) == sorted(normless.__all__)
    assert len(normless.__all__) <= 40
    with pytest.raises(AttributeError, match="No normless attribute nothing"):
        _ = normless.nothing


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
