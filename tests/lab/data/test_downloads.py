"""Downloads from a folder of this machine: verified, unpacked, complete or not there at all."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch.hub
from image_files import write_cifar10
from torchvision.datasets import CIFAR10

from normless.errors import DataNotFoundError
from normless_lab.data import load_data
from normless_lab.data._downloads import fetch_files


@pytest.mark.parametrize("name", ["cifar10", "svhn", "pets"])
def test_without_a_network_the_message_tells_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def offline(url: str, dst: str, **_: Any) -> None:
        Path(dst).write_bytes(b"half")
        raise URLError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(DataNotFoundError) as caught:
        load_data(name, root=tmp_path)
    for part in (f"The data set {name} is not in", "Downloading http", "no route to host", "by hand"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def packed(archive: Path, folder: Path) -> str:
    """Pack a folder under its own name; return the digest of the archive."""
    archive.parent.mkdir(exist_ok=True)
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, folder.name)
    return hashlib.md5(archive.read_bytes()).hexdigest()


def test_an_archive_is_verified_unpacked_and_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, labels, _, _ = write_cifar10(tmp_path / "cifar-10-batches-py")
    archive, root = tmp_path / "source" / CIFAR10.filename, tmp_path / "root"
    digest = packed(archive, tmp_path / "cifar-10-batches-py")
    monkeypatch.setattr(CIFAR10, "url", archive.as_uri())
    with pytest.raises(DataNotFoundError, match=f"its digest is {digest}, expected {CIFAR10.tgz_md5}"):
        load_data("cifar10", root=root)
    assert not root.exists()
    monkeypatch.setattr(CIFAR10, "tgz_md5", digest)
    assert load_data("cifar10", root=root).train.labels.tolist() == labels.tolist()
    assert [path.name for path in (root / "cifar10").iterdir()] == ["cifar-10-batches-py"]
    archive.unlink()
    load_data("cifar10", root=root)


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, to
    return member


WAYS_OUT: dict[str, Callable[[Path], list[tarfile.TarInfo]]] = {
    "parent": lambda outside: [tarfile.TarInfo(f"../../../{outside.name}/evil")],
    "absolute": lambda outside: [tarfile.TarInfo(str(outside / "evil"))],
    "relative link": lambda outside: [link("way", f"../../../{outside.name}"), tarfile.TarInfo("way/evil")],
    "hard link": lambda outside: [link("way", str(outside / "own"), tarfile.LNKTYPE), tarfile.TarInfo("way")],
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_a_member_of_an_archive_cannot_leave_the_folder(tmp_path: Path, way: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "own").write_text("own")
    archive, folder = tmp_path / "b.tar.gz", tmp_path / "root" / "data"
    with tarfile.open(archive, "w:gz") as file:
        for member in WAYS_OUT[way](outside):
            member.size = 4 if member.isfile() else 0
            file.addfile(member, io.BytesIO(b"evil"))
    # Of an absolute name, what follows the slash is a name inside.
    refused = pytest.raises(DataNotFoundError, match=r"Downloading .*b\.tar\.gz into .* failed")
    with nullcontext() if way == "absolute" else refused:
        digest = hashlib.md5(archive.read_bytes()).hexdigest()
        fetch_files(folder, f"{tmp_path.as_uri()}/", {"b.tar.gz": digest})
    assert [path.name for path in outside.iterdir()] == ["own"]
    assert (outside / "own").read_text() == "own"
    assert [path.name for path in folder.rglob("*") if path.is_file()] == (["evil"] if way == "absolute" else [])
