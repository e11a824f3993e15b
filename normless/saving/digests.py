"""SHA-256 of files and of plain data, which tells damage; torch is not imported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def digest_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_values(values: Mapping[str, Any]) -> str:
    """SHA-256 of plain data as JSON in its own order, in hexadecimal; what is read back from JSON has the same."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
