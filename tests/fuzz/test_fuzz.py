"""A small sample of the cases of `make fuzz`, the same in every run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_no_wrong_input_ends_in_a_traceback() -> None:
    script = Path(__file__).with_name("fuzz.py")
    done = subprocess.run(
        [sys.executable, str(script), "--cases", "40", "--seed", "1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    kinds = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    together = [int(number) for number in kinds["together"].split()[1:]]
    assert together[0] == sum(together[1:]) >= 40
    # Some are accepted and some are refused.
    assert min(together[1:3]) > 3
