"""Checks of artefacts that train, or decide nothing when small: published numbers fail none, the opposite all."""

from __future__ import annotations

import pytest
from test_measured_artefacts import ANY, CASES
from worlds import WORLDS, checks_of

from normless_papers.published import published

# Worlds of thousands of made-up runs; a table of each paper stays.
SLOW = {
    *(f"zeroinit/figure-{number}" for number in (1, 2, 3, 4)),
    *(f"skipinit/figure-{number}" for number in (4, 6, 7, 8)),
    *(f"skipinit/{name}" for name in ("ghost-batch-size", "skipinit", "table-3", "table-5", "table-7")),
    *(f"gamma/{name}" for name in ("table-2", *(f"guideline-{number}" for number in (1, 2, 3, 4)))),
    "understanding-bn/table-2",
}


def test_every_artefact_has_its_worlds() -> None:
    """But those whose checks hold on what they measure, and fail on other numbers."""
    measured = {name for name, case in CASES.items() if case.verdicts is not ANY}
    assert sorted({*WORLDS} | measured) == sorted(published())
    assert not {*WORLDS} & measured


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in WORLDS])
def test_published_numbers_fail_no_check_and_the_opposite_satisfies_none(name: str) -> None:
    """Both are asked the same: each has as many checks as the other."""
    of_published, of_opposite = ([check.verdict for check in checks_of(name, right)] for right in (True, False))
    assert "fails" not in of_published
    assert "holds" in of_published
    assert "holds" not in of_opposite
    assert "fails" in of_opposite
    assert len(of_published) == len(of_opposite)
