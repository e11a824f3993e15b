"""The tutorials as notebooks: `make notebooks` writes them to notebooks/."""

from __future__ import annotations

import posixpath
import re
import sys
import tomllib
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ROOT = Path(__file__).parents[1]
TUTORIALS = sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if page.stem != "index")
NOTEBOOKS = ROOT / "notebooks"
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Source"]
INSTALL = f'%pip install --quiet "normless[all] @ git+{REPOSITORY}"'

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
_FILE = re.compile(r"# (\w+\.\w+)\n")
_LINK = re.compile(r"\]\((?!\w+:)([^)#]+)")
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebook_of(page: Path) -> str:
    """The text of a page's notebook: its Python, its files and its commands as cells of code, without outputs."""
    text = page.read_text(encoding="utf-8")
    text = _LINK.sub(lambda link: f"]({REPOSITORY}/blob/main/{posixpath.normpath(f'docs/tutorials/{link[1]}')}", text)
    cells, words = [], ""
    place = 0
    for block in _BLOCK.finditer(text):
        words, place = words + text[place : block.start()], block.end()
        code = code_of(block[1], block[2])
        if code is None:
            words += block[0]
            continue
        cells.append((new_markdown_cell, words))
        if len(cells) == 1:
            cells.append((new_code_cell, INSTALL))
        cells.append((new_code_cell, code))
        words = ""
    cells.append((new_markdown_cell, words + text[place:]))
    made = [new(words.strip(), id=f"cell-{number}") for number, (new, words) in enumerate(cells) if words.strip()]
    notebook = new_notebook(cells=made, metadata=_METADATA)
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def code_of(language: str, text: str) -> str | None:
    """The code of a cell for a fenced block; None for a block that is only to be read."""
    file = _FILE.match(text)
    if file is not None:
        return f"%%writefile {file[1]}\n{text}"
    if language == "console":
        return "\n".join(f"!{command}" for command in _COMMAND.findall(text))
    return text if language == "python" else None


def main() -> int:
    """Write the notebook of every tutorial."""
    NOTEBOOKS.mkdir(exist_ok=True)
    for page in TUTORIALS:
        (NOTEBOOKS / f"{page.stem}.ipynb").write_text(notebook_of(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
