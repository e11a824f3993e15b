"""A sample of `make faults`, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_faults_are_survived() -> None:
    script = str(Path(__file__).with_name("file_faults.py"))
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist", script]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=kept | {"NORMLESS_FAULTS": "200"})
    assert done.returncode == 0, done.stdout + done.stderr
