"""Files are replaced at once or not at all, and count as damaged only if they are."""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from kills import killed_before

from normless.saving import Digests, replaced


def write(folder: Path, text: str) -> None:
    """Replace a file; the one before is kept."""
    with Digests(folder).replaced(folder / "a", keep=folder / "b") as part:
        part.write_text(text)


def texts(folder: Path) -> list[str]:
    """The texts of the files that are there; each must be intact."""
    files = [file for file in (folder / "a", folder / "b") if file.exists()]
    assert all(map(Digests(folder).is_intact, files))
    return [file.read_text() for file in files]


def test_a_changed_file_is_damaged_and_so_is_a_file_without_a_digest(tmp_path: Path) -> None:
    write(tmp_path, "1")
    write(tmp_path, "2")
    assert texts(tmp_path) == ["2", "1"]
    digests = Digests(tmp_path)
    (tmp_path / "b").write_text("3")
    assert not digests.is_intact(tmp_path / "b")
    (tmp_path / "b").unlink()
    assert not digests.is_intact(tmp_path / "b")
    write(tmp_path, "4")
    (tmp_path / "a").write_text("5")
    write(tmp_path, "6")
    assert texts(tmp_path) == ["6", "2"], "a damaged file is not kept"
    (tmp_path / "c").write_text("of nobody")
    assert not digests.is_intact(tmp_path / "c")
    listed = digests.path.read_text()
    for damaged in ("", "{}", "[]", listed.replace('"a"', '"c"'), listed[:-3]):
        digests.path.write_text(damaged)
        assert not digests.is_intact(tmp_path / "a")
    digests.path.unlink()
    assert not digests.is_intact(tmp_path / "a")
    write(tmp_path, "7")
    assert [digests.is_intact(tmp_path / name) for name in "ab"] == [True, False]


def _fail_within(writer: AbstractContextManager[Path]) -> None:
    with writer as part:
        part.write_text("aft")
        raise OSError(errno.ENOSPC, "full")


def test_an_error_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("before")
    for writer in (replaced, Digests(tmp_path).replaced):
        with pytest.raises(OSError, match="full"):
            _fail_within(writer(path))
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    assert path.read_text() == "before"


def test_a_link_in_place_of_the_partial_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "a.part").symlink_to(tmp_path / "mine")
    write(tmp_path, "1")
    assert (tmp_path / "mine").read_text() == "mine"
    assert texts(tmp_path) == ["1"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("names", [{"a"}, {"b"}, {"digests.json"}])
def test_repeated_failures_to_rename_damage_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, names: set[str]
) -> None:
    write(tmp_path, "1")
    write(tmp_path, "2")
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if target.name in names:
            raise OSError(code, os.strerror(code))
        return replace(path, target)

    for attempt in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", refuse)
            with pytest.raises(OSError, match=os.strerror(code)):
                write(tmp_path, f"3, attempt {attempt}")
        # The file is kept before the new one has its name.
        assert texts(tmp_path) in (["2", "1"], ["2"])
    write(tmp_path, "4")
    assert texts(tmp_path)[0] == "4"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
def test_a_process_may_be_killed_at_any_time_and_again(tmp_path: Path) -> None:
    number, was_killed = 1, True
    while was_killed:
        folder = tmp_path / str(number)
        folder.mkdir()
        for text in "12":
            write(folder, text)
        for text in "34":
            was_killed = killed_before(number, folder, lambda folder=folder, text=text: write(folder, text))  # type: ignore[misc]
            assert texts(folder)
        number += 1
    assert number > 5
