"""Every check of every artefact: the published numbers fail none, and their opposite satisfies none."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import fixup, gamma, skipinit, understanding_bn, zeroinit

from normless_papers.artefact import artefact_of
from normless_papers.published import published

WORLDS = {**skipinit.WORLDS, **zeroinit.WORLDS, **understanding_bn.WORLDS, **fixup.WORLDS, **gamma.WORLDS}


def test_every_artefact_has_its_worlds() -> None:
    assert sorted(WORLDS) == sorted(published())


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_published_numbers_fail_no_check_and_the_opposite_satisfies_none(name: str, tmp_path: Path) -> None:
    """Both are asked the same: each has as many checks as the other."""
    artefact, world = artefact_of(name), WORLDS[name]
    published, opposite = (tmp_path / "published", tmp_path / "opposite")
    for folder in (published, opposite):
        folder.mkdir()
    of_published = [one.verdict for one in artefact.checks(world.published(published))]
    of_opposite = [one.verdict for one in artefact.checks(world.opposite(opposite))]
    assert "fails" not in of_published
    assert "holds" in of_published
    assert "holds" not in of_opposite
    assert "fails" in of_opposite
    assert len(of_published) == len(of_opposite)
