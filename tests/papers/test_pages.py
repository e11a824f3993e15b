"""The pages of a folder of results: links between artefacts, and texts of other people as texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from page_reader import Reader, assert_stands_alone
from papers_helpers import result_of

from normless_papers.claims import Claim
from normless_papers.pages.site import write_pages_of
from normless_papers.pages.tables import as_text
from normless_papers.published import published
from normless_papers.results.reproduction import Reproduction, save

HOSTILE = '</p></style><script>steal()</script><img src=http://evil.invalid/i onerror="steal()">"\'><b id=evil>'


def test_a_page_for_each_paper_whose_links_lead_somewhere(tmp_path: Path) -> None:
    """Results of two papers, one of them an error."""
    for name in published():
        if name.startswith(("fixup/", "zeroinit/")):
            save(result_of(name), None, tmp_path)
    save(result_of("fixup/table-3", error="No <memory> was left."), None, tmp_path)
    readers = {path.name: assert_stands_alone(path.read_text("utf-8")) for path in write_pages_of(tmp_path)}
    assert list(readers) == ["index.html", "zeroinit.html", "fixup.html"]
    ids = {name: reader.attributes("id") for name, reader in readers.items()}
    for name, reader in readers.items():
        for file, _, fragment in (link.partition("#") for link in reader.attributes("href")):
            assert (file or name) in readers
            assert not fragment or fragment in ids[file or name]
    assert "No <memory> was left." in readers["fixup.html"].text
    assert "1 error" in readers["index.html"].text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("![x](http://elsewhere)", "![x]\\(http://elsewhere)"),
        ("[x][y] and [x]: z", "[x]\\[y] and [x]\\: z"),
        ("a\n| b |\n# c", "a | b | # c"),
        ("p < 0.05, [0.1, 0.2]", "p < 0.05, [0.1, 0.2]"),
    ],
)
def test_texts_in_markdown_stay_texts(text: str, escaped: str) -> None:
    assert as_text(text) == escaped


def hostile() -> Reproduction:
    result = replace(
        result_of("fixup/table-1"),
        checks=(Claim(HOSTILE, "holds", {HOSTILE: 1.0}),),
        setup={HOSTILE: HOSTILE},
        remarks=(HOSTILE,),
        figure=HOSTILE,
        provenance=dict.fromkeys((HOSTILE, "date", "machine"), HOSTILE),
    )
    return replace(result, measured=result.measured.assign(**{HOSTILE: HOSTILE}))


def test_texts_of_a_hostile_result_are_texts(tmp_path: Path) -> None:
    save(hostile(), None, tmp_path)
    _, page = write_pages_of(tmp_path)
    reader = Reader(page.read_text("utf-8"))
    assert HOSTILE in reader.text
    assert "evil" not in reader.attributes("id")
    assert [tag for tag, _ in reader.tags].count("script") == 1
    assert "img" not in {tag for tag, _ in reader.tags}
