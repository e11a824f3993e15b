"""Archives of a download that name places outside their folder write nothing there."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from normless_lab.data import DataNotFoundError
from normless_lab.data.downloads import fetch_images

utils = pytest.importorskip("torchvision.datasets.utils")


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


WAYS_OUT: dict[str, Callable[[Path], list[tarfile.TarInfo]]] = {
    "parent": lambda outside: [tarfile.TarInfo(f"../../../{outside.name}/evil")],
    "absolute": lambda outside: [tarfile.TarInfo(str(outside / "evil"))],
    "link": lambda outside: [link("way", str(outside)), tarfile.TarInfo("way/evil")],
    "relative link": lambda outside: [link("way", f"../../../{outside.name}"), tarfile.TarInfo("way/evil")],
    "hard link": lambda outside: [link("way", str(outside / "own"), tarfile.LNKTYPE), tarfile.TarInfo("way")],
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_member_cannot_leave_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "own").write_text("own")

    def download(url: str, root: str, filename: str, md5: str) -> None:
        with tarfile.open(Path(root, filename), "w:gz") as archive:
            for member in WAYS_OUT[way](outside):
                member.size = 4 if member.isfile() else 0
                archive.addfile(member, io.BytesIO(b"evil"))

    monkeypatch.setattr(utils, "download_url", download)
    folder = tmp_path / "root" / "data"
    # Of an absolute name, what follows the slash is a name inside.
    refused = pytest.raises(DataNotFoundError, match=r"Downloading http://a/b\.tar\.gz into .* failed")
    with nullcontext() if way == "absolute" else refused:
        fetch_images(folder, lambda _: [("http://a/b.tar.gz", "b.tar.gz", "0" * 32)])
    assert [path.name for path in outside.iterdir()] == ["own"]
    assert (outside / "own").read_text() == "own"
    assert [path.name for path in folder.rglob("*") if path.is_file()] == (["evil"] if way == "absolute" else [])
