"""The download of Multi30k, without a network."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from urllib.error import URLError

import pytest
import torch.hub

from normless_lab.data import DataNotFoundError, load_data
from normless_lab.data.downloads import fetch_files
from normless_papers.text import ParallelText, parallel_folder


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_without_a_network_the_message_tells_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(url: str, dst: str, hash_prefix: str | None = None, progress: bool = True) -> None:
        Path(dst).write_bytes(b"half")
        raise URLError("no route to host")

    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(DataNotFoundError) as caught:
        load_data("multi30k", root=tmp_path, kind=ParallelText)
    message = str(caught.value)
    for part in ("The data set multi30k is not in", "train.de", "Downloading https", "no route to host", "by hand"):
        assert part in message
    assert files_in(tmp_path) == []


def test_files_are_fetched_once_and_each_against_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    source.mkdir()
    digests = {}
    for name in parallel_folder.DIGESTS:
        content = gzip.compress(f"{name}\n".encode())
        (source / name).write_bytes(content)
        digests[name] = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(parallel_folder, "ADDRESS", source.as_uri() + "/")
    monkeypatch.setattr(parallel_folder, "DIGESTS", digests)
    text = load_data("multi30k", root=root, kind=ParallelText)
    assert text.train.source == ("train.de.gz",)
    assert text.test.target == ("test_2016_flickr.en.gz",)
    assert files_in(root) == sorted(digests)
    for name in digests:
        (source / name).unlink()
    assert load_data("multi30k", root=root, kind=ParallelText) == text


def test_another_content_is_refused_and_removed(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(b"not what it should be")
    with pytest.raises(DataNotFoundError, match="its digest is"):
        fetch_files(tmp_path / "into", tmp_path.as_uri() + "/", {"a.gz": "0" * 64})
    assert files_in(tmp_path / "into") == []
