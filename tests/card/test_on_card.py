"""The files of `on_card`, in a process of their own: the simulated card cannot be taken out of torch again.

Torch counts devices at the first backward pass of a process, so tests on the card cannot follow others. To run some
of them: ``python -m pytest tests/card/on_card/on_card_images.py -k resumed``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parent / "on_card").glob("on_card_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_on_the_simulated_card(file: Path) -> None:
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(file)],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
