"""Texts of results in Markdown pages: no HTML, no link, no row of a table."""

from __future__ import annotations

import pytest

from normless_papers.pages.tables import as_text, row_of


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<script>alert(1)</script>", "&lt;script>alert(1)&lt;/script>"),
        ("<!-- gone", "&lt;!-- gone"),
        ("<img src=x onerror=y>", "&lt;img src=x onerror=y>"),
        ("![x](http://elsewhere)", "![x]\\(http://elsewhere)"),
        ("[x][y] and [x]: z", "[x]\\[y] and [x]\\: z"),
        ("a\n| b |\n# c", "a | b | # c"),
        ("p < 0.05, a <= b, [0.1, 0.2]", "p < 0.05, a <= b, [0.1, 0.2]"),
    ],
)
def test_texts_stay_texts(text: str, escaped: str) -> None:
    assert as_text(text) == escaped
    assert row_of([as_text(text)]).count("\n") == 0
