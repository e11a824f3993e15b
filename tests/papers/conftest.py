"""The context that artefacts are carried out in, with a folder of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from papers_helpers import context_in

from normless_papers.artefact import Context


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """At the smoke budget; `papers_helpers.context_in` makes one at another."""
    return context_in(tmp_path)
