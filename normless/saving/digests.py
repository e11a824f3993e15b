"""SHA-256 of files and of plain data, to detect damage; torch is not imported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_values(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain data as JSON, in hexadecimal; it is the same for data read back from JSON."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
