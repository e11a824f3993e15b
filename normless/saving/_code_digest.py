"""The Python files that texts of models and schemes name."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

from normless._internal.code_digest import modules_of as modules_of
from normless.spec import split_source, split_terms


def code_named(*texts: str, others: Collection[str] = ()) -> dict[str, Path]:
    """Return the Python files of the sources `FILE.py` and, if imported, `MODULE` in texts, but for `others`."""
    files = {}
    for source in (split_source(term)[0].removesuffix(":") for text in texts for term in split_terms(text)):
        file = source if source.endswith(".py") else str(getattr(sys.modules.get(source), "__file__", ""))
        if source not in others and file.endswith(".py"):
            files[source] = Path(file)
    return files
