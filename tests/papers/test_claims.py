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
def test_published_numbers_fail_no_check(name: str, tmp_path: Path) -> None:
    checks = artefact_of(name).checks(WORLDS[name].published(tmp_path))
    assert [one for one in checks if one.verdict == "fails"] == []
    assert any(one.verdict == "holds" for one in checks)


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_the_opposite_satisfies_no_check(name: str, tmp_path: Path) -> None:
    checks = artefact_of(name).checks(WORLDS[name].opposite(tmp_path))
    assert [one for one in checks if one.verdict == "holds"] == []
    assert any(one.verdict == "fails" for one in checks)


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_both_worlds_are_asked_the_same(name: str, tmp_path: Path) -> None:
    world, checks = WORLDS[name], artefact_of(name).checks
    assert len(checks(world.published(tmp_path))) == len(checks(world.opposite(tmp_path)))
