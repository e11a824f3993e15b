"""Every check of every artefact: the published numbers fail none, and their opposite satisfies none."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import fixup, gamma, skipinit, understanding_bn, zeroinit

from normless_papers.artefact import artefact_of
from normless_papers.published import published

WORLDS = {**skipinit.WORLDS, **zeroinit.WORLDS, **understanding_bn.WORLDS, **fixup.WORLDS, **gamma.WORLDS}


# Worlds of thousands of made-up runs; a table of each paper stays.
SLOW = {
    *(f"zeroinit/figure-{number}" for number in (1, 2, 3, 4)),
    *(
        f"skipinit/{name}"
        for name in ("figure-4", "figure-6", "figure-7", "figure-8", "ghost-batch-size", "skipinit")
    ),
    *(f"skipinit/table-{number}" for number in (3, 5, 7)),
    *(f"gamma/{name}" for name in ("table-2", "guideline-1", "guideline-2", "guideline-4")),
    "understanding-bn/table-2",
}


def test_every_artefact_has_its_worlds() -> None:
    assert sorted(WORLDS) == sorted(published())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(WORLDS)]
)
def test_published_numbers_fail_no_check_and_the_opposite_satisfies_none(name: str, tmp_path: Path) -> None:
    """Both are asked the same: each has as many checks as the other."""
    artefact, world = artefact_of(name), WORLDS[name]
    published, opposite = (tmp_path / "published", tmp_path / "opposite")
    for folder in (published, opposite):
        folder.mkdir()
    of_published = [check.verdict for check in artefact.checks(world.published(published))]
    of_opposite = [check.verdict for check in artefact.checks(world.opposite(opposite))]
    assert "fails" not in of_published
    assert "holds" in of_published
    assert "holds" not in of_opposite
    assert "fails" in of_opposite
    assert len(of_published) == len(of_opposite)
