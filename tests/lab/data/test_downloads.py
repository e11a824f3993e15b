from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from normless_lab.data import DataNotFoundError, load_data

utils = pytest.importorskip("torchvision.datasets.utils")


def offline(url: str, root: str, filename: str | None = None, md5: str | None = None, **_: Any) -> None:
    Path(root, "half.part").write_bytes(b"half")
    raise URLError("no route to host")


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"])
def test_without_a_network_the_message_tells_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(utils, "download_url", offline)
    with pytest.raises(DataNotFoundError) as caught:
        load_data(name, root=tmp_path)
    message = str(caught.value)
    for part in (f"The data set {name} is not in", "Downloading http", "no route to host", "by hand", ".parquet"):
        assert part in message
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_archive_is_checked_unpacked_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_cifar10: Callable[[Path], list[Any]]
) -> None:
    source, root = tmp_path / "source", tmp_path / "root"
    _, labels, _, _ = write_cifar10(source / "cifar-10-batches-py")
    asked: list[tuple[str, str | None]] = []

    def download(url: str, root: str, filename: str | None = None, md5: str | None = None, **_: Any) -> None:
        asked.append((url, md5))
        assert filename is not None
        with tarfile.open(Path(root, filename), "w:gz") as archive:
            archive.add(source / "cifar-10-batches-py", "cifar-10-batches-py")

    monkeypatch.setattr(utils, "download_url", download)
    assert load_data("cifar10", root=root).train_labels.tolist() == labels.tolist()
    from torchvision.datasets import CIFAR10

    assert asked == [(CIFAR10.url, CIFAR10.tgz_md5)]
    assert [path.name for path in (root / "cifar10").iterdir()] == ["cifar-10-batches-py"]
    load_data("cifar10", root=root)
    assert len(asked) == 1
