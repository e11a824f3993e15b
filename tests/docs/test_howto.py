"""The how-to pages: their files are written, their code and their commands are run, in order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from normless.cli import main
from normless.edits import EDITS
from normless.probes import PROBES
from normless.schemes import SCHEMES
from normless_papers.artefact import ARTEFACTS

PAGES = sorted((Path(__file__).parents[2] / "docs" / "howto").glob("*.md"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.\w+)\n")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The language and the text of every fenced block."""
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield match[1], match[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_works_as_it_reads(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # What a page registers is not for the tests after it.
    for registry in (SCHEMES, EDITS, PROBES, ARTEFACTS):
        monkeypatch.setattr(registry, "_own", dict(registry._own))
    names: dict[str, Any] = {"__name__": "howto"}
    files = commands = 0
    for language, text in blocks(page):
        file = _FILE.match(text)
        if language in ("python", "yaml") and file is not None:
            Path(file[1]).write_text(text, encoding="utf-8")
            files += 1
        elif language == "python":
            exec(compile(text, str(page), "exec"), names)
        elif language == "console":
            for line in re.findall(r"^\$ normless (.*)$", text, re.MULTILINE):
                commands += 1
                assert main(shlex.split(line)) == 0, capsys.readouterr().err
    assert files >= 1
    assert commands >= 1
