"""A sample of `make faults`: nothing is lost, doubled or silently changed, and nothing ends in a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("sample", [200, 1])
def test_every_fault_is_survived(sample: int) -> None:
    script = Path(__file__).with_name("faults.py")
    folders = [script.parents[2], script.parents[1] / "sweeps", os.environ.get("PYTHONPATH", "")]
    paths = os.pathsep.join(map(str, folders))
    command = [sys.executable, str(script), "--sample", str(sample)]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    tried, survived = map(int, done.stdout.splitlines()[-1].split()[1:3])
    assert tried == survived >= 10
