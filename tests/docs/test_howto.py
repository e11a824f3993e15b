"""How-to pages, tutorials and README: their files are written, their code and their commands are run, in order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from normless.cli import main
from normless.doctor._findings import RULES
from normless.edits import EDITS
from normless.probes import PROBES
from normless.schemes import SCHEMES
from normless_papers.artefact import ARTEFACTS

ROOT = Path(__file__).parents[2]
README, QUESTIONS = ROOT / "README.md", ROOT / "docs" / "questions.md"
HOWTOS = sorted((ROOT / "docs" / "howto").glob("*.md"))
TUTORIALS = sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if page.stem != "index")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\w+\.\w+)\n")


def carry_out(page: Path, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    """Write the files of a page, run its code and its commands of normless; the number of files and commands."""
    files = commands = 0
    for language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
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


@pytest.mark.parametrize(
    "page",
    [README, *(pytest.param(page, marks=pytest.mark.slow) for page in (*HOWTOS, *TUTORIALS, QUESTIONS))],
    ids=lambda page: page.stem,
)
@pytest.mark.filterwarnings("ignore:Optimal order is the largest alpha:UserWarning")  # Opacus' accountant
def test_the_page_works_as_it_reads(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # What a page registers is not for the tests after it.
    for registry in (SCHEMES, EDITS, PROBES, ARTEFACTS):
        monkeypatch.setattr(registry, "_own", dict(registry._own))
    monkeypatch.setitem(RULES, "pass", [*RULES["pass"]])
    names: dict[str, Any] = {"__name__": page.stem}
    files, commands = carry_out(page, names, capsys)
    if page in HOWTOS:
        assert files
        # Rules are made by every diagnosis of their process.
        assert commands or page.stem == "finding"
    elif page == README:
        printed = capsys.readouterr().out
        assert (files, commands) == (0, 3)
        assert "8 residual blocks" in printed
        assert "Nothing was found that keeps it from training" in printed
        assert names["report"].norms, "every batch norm is in the report"
        assert Path("fixed-up", "model.safetensors").is_file()
        assert Path("resnet18-fixup", "recipe.json").is_file()


def test_links_lead_somewhere_and_every_page_is_in_the_navigation_or_an_index() -> None:
    indexes = [ROOT / "docs" / name / "index.md" for name in ("tutorials", "results")]
    for page in (README, *(ROOT / "docs").glob("*.md"), *HOWTOS, *TUTORIALS, *indexes):
        text = page.read_text(encoding="utf-8")
        targets = re.findall(r'\]\(([^)#]+)(?:#[^)]*)?\)|src="([^"]+)"', text)
        for target in filter(None, (one or other for one, other in targets)):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"
    docs = ROOT / "docs"
    named = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) < 30
    linked = {
        str((page.parent / target).resolve().relative_to(docs))
        for page in indexes
        for target in re.findall(r"\]\(([^)#]+\.md)\)", page.read_text(encoding="utf-8"))
    }
    assert {*named} | linked >= {str(page.relative_to(docs)) for page in docs.rglob("*.md")}
