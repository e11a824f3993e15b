"""How-to pages, tutorials and README: their files are written, their code and their commands are run, in order."""

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

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "howto").glob("*.md"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.\w+)\n")


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The language and the text of every fenced block."""
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield match[1], match[2]


def carry_out(page: Path, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """Write the files of a page, run its code and its commands of normless; the number of files and commands."""
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
    return files, commands


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_works_as_it_reads(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # What a page registers is not for the tests after it.
    for registry in (SCHEMES, EDITS, PROBES, ARTEFACTS):
        monkeypatch.setattr(registry, "_own", dict(registry._own))
    files, commands = carry_out(page, {"__name__": "howto"}, capsys)
    assert files >= 1
    assert commands >= 1


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha:UserWarning")  # Opacus' accountant
def test_the_tutorial_works_as_it_reads(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(page.read_text(encoding="utf-8").splitlines()) < 100
    assert any(language in ("python", "console") for language, _ in blocks(page))
    carry_out(page, {"__name__": "tutorial"}, capsys)


@pytest.mark.slow
def test_the_questions_work_as_they_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    page = ROOT / "docs" / "questions.md"
    carry_out(page, {"__name__": "questions"}, capsys)
    # Every answer says where it was asked or is described.
    answers = page.read_text(encoding="utf-8").split("\n### ")[1:]
    assert answers
    assert all("](https://" in answer for answer in answers)


def test_the_readme_works_as_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    assert carry_out(ROOT / "README.md", names, capsys) == (0, 3)
    printed = capsys.readouterr().out
    assert "8 residual blocks" in printed
    assert "Nothing was found that keeps it from training" in printed
    assert names["report"].norms, "every batch norm is in the report"
    assert (tmp_path / "fixed-up" / "model.safetensors").is_file()
    assert (tmp_path / "resnet18-fixup" / "recipe.json").is_file()


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *PAGES, *TUTORIALS):
        # mkdocs turns the paths of Markdown into those of the site, and leaves those of HTML.
        assert page.name == "README.md" or "<img" not in page.read_text(encoding="utf-8"), page.name
        targets = re.findall(r'\]\(([^)#]+)(?:#[^)]*)?\)|src="([^"]+)"', page.read_text(encoding="utf-8"))
        for target in filter(None, (one or other for one, other in targets)):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_in_the_navigation() -> None:
    docs = ROOT / "docs"
    named = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))
