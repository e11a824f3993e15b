"""Oxford-IIIT Pet: its official files in each place they may lie, and its download."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from normless_lab.data import load_data

utils = pytest.importorskip("torchvision.datasets.utils")

SMALL = {"size": 8, "resize": 10, "workers": 0}


def write_pets(folder: Path) -> Path:
    """Three breeds with an image each in training and test, in the official layout, trimaps too."""
    lists: dict[str, list[str]] = {"trainval": ["#Image CLASS-ID SPECIES BREED ID"], "test": []}
    (folder / "annotations" / "trimaps").mkdir(parents=True)
    (folder / "images").mkdir()
    for label, breed in enumerate(("Abyssinian", "american_bulldog", "beagle"), start=1):
        for number, name in enumerate(lists):
            Image.new("RGB", (14, 12), (40 * label, 0, 100 * number)).save(
                folder / "images" / f"{breed}_{number}.jpg"
            )
            Image.new("L", (14, 12), 1).save(folder / "annotations" / "trimaps" / f"{breed}_{number}.png")
            lists[name].append(f"{breed}_{number} {label} 1 {label}")
    for name, lines in lists.items():
        (folder / "annotations" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("place", ["pets", "oxford-iiit-pet", "."])
def test_official_files_are_found_where_they_may_lie(tmp_path: Path, place: str) -> None:
    write_pets(tmp_path / place)
    data = load_data("pets", root=tmp_path, download=False, **SMALL)
    assert (data.name, data.classes, data.image_shape) == ("pets", 3, (3, 8, 8))
    assert data.train_labels.tolist() == data.test_labels.tolist() == [0, 1, 2]
    assert data.provenance.startswith(
        "pets: official files; 3 train / 3 test, 3 classes, 3×8×8; sha256 of file names"
    )
    (batch,) = data.test_batches(3)
    blue = (batch.inputs[:, 2] * data.std[2] + data.mean[2]) * 255
    torch.testing.assert_close(blue, torch.full_like(blue, 100), rtol=0, atol=3)
    part = load_data("pets(train=2)", root=tmp_path, download=False, **SMALL)
    assert (part.name, part.train_size, part.test_size) == ("pets", 2, 3)


def test_both_archives_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, root = write_pets(tmp_path / "source"), tmp_path / "root"
    asked: list[str] = []

    def download(url: str, root: str, filename: str | None = None, md5: str | None = None, **_: Any) -> None:
        assert filename is not None
        assert md5 is not None
        asked.append(url.rpartition("/")[2])
        with tarfile.open(Path(root, filename), "w:gz") as archive:
            inner = filename.partition(".")[0]
            archive.add(source / inner, inner)

    monkeypatch.setattr(utils, "download_url", download)
    for _ in range(2):
        assert load_data("pets", root=root, **SMALL).train_size == 3
    assert asked == ["images.tar.gz", "annotations.tar.gz"]
    assert sorted(path.name for path in (root / "pets").iterdir()) == ["annotations", "images"]
