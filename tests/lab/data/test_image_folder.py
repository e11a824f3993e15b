"""Image files in class folders and of Oxford-IIIT Pet: their classes, crops, draws and errors."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from normless.errors import DataFormatError, DataNotFoundError
from normless_lab.data import Augmentation, Batch, ImageData, load_data

SMALL: dict[str, Any] = {"size": 8, "resize": 10, "workers": 0}


def save(path: Path, colour: int, side: tuple[int, int] = (20, 14)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", side, (colour, 0, 255 - colour)).save(path)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two classes, of 5 and 3 training images and 2 and 1 test images, each of one colour."""
    for split, sizes in (("train", (5, 3)), ("val", (2, 1))):
        for label, size in enumerate(sizes):
            for number in range(size):
                save(tmp_path / split / f"class{label}" / f"{number}.png", 100 * label + 10 * number)
    for name in ("notes.txt", "figure.eps", "paper.pdf"):
        (tmp_path / "train" / "class0" / name).write_text("not an image")
    return tmp_path


def red(data: ImageData, batch: Batch) -> list[int]:
    values = (batch.inputs[:, 0].mean((1, 2)) * data.std[0] + data.mean[0]) * 255
    return [round(value) for value in values.tolist()]


def test_classes_of_training_and_test_must_be_the_same(folders: Path) -> None:
    save(folders / "val/class9/0.png", 0)
    with pytest.raises(DataFormatError, match="differ, for instance in class9"):
        load_data("image_folder", root=folders, **SMALL)


def test_class_folders_are_read(folders: Path) -> None:
    data = load_data("image_folder", root=folders, **SMALL)
    assert (data.classes, data.image_shape) == (2, (3, 8, 8))
    assert (data.train_size, data.test_size) == (8, 3)
    assert data.default_augmentation == Augmentation(flip=True)
    (batch,) = data.test_batches(9, device="cpu")
    assert batch.inputs.shape == (3, 3, 8, 8)
    assert red(data, batch) == [0, 10, 100]
    assert batch.targets.tolist() == [0, 0, 1]
    (batch,) = data.train_batches(8, seed=0, epoch=0, augmentation=data.default_augmentation, device="cpu")
    pairs = sorted(zip(red(data, batch), batch.targets.tolist(), strict=True))
    assert pairs == [(0, 0), (10, 0), (20, 0), (30, 0), (40, 0), (100, 1), (110, 1), (120, 1)]
    assert "8 train / 3 test, 2 classes, 3×8×8; sha256 of file names, lengths and labels" in data.provenance


def truncated(file: Path) -> None:
    Image.effect_noise((60, 60), 50).save(file, "jpeg")
    file.write_bytes(file.read_bytes()[:900])


def without_pixels(file: Path) -> None:
    Image.new("RGB", (1, 3)).save(file, "bmp")
    content = bytearray(file.read_bytes())
    content[18:22] = bytes(4)  # the width
    file.write_bytes(content)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no image": (lambda file: file.write_bytes(b"not an image"), "cannot identify image file"),
    "truncated": (truncated, "image file is truncated"),
    "no pixels": (without_pixels, "cannot identify image file"),
    "pipe": (os.mkfifo, "it is not a file"),
}


# Newer Pythons warn of any fork of a process with threads, which is how torch starts its workers.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_image_is_named_in_one_sentence(folders: Path, broken: str, workers: int) -> None:
    damage, reason = BROKEN[broken]
    file = folders / "val" / "class0" / "1.png"
    data = load_data("image_folder", root=folders, **SMALL | {"workers": workers})
    file.unlink()
    damage(file)
    before = set(multiprocessing.active_children())
    with pytest.raises(DataFormatError, match=rf"^Cannot decode \S+/val/class0/1.png: .*{reason}.*\.$") as caught:
        list(data.test_batches(3, device="cpu"))
    assert "\n" not in str(caught.value)
    assert set(multiprocessing.active_children()) == before


# An error between two batches, and the end of the program after SIGTERM to a worker.
@pytest.mark.parametrize(
    "end", ["os.kill(pids[0], signal.SIGTERM)", pytest.param("raise ValueError('mine')", marks=pytest.mark.slow)]
)
def test_process_ends_with_its_workers(folders: Path, end: str) -> None:
    # Workers leave SIGTERM to their parent, so Python, which sends it to them at exit, used to wait for ever.
    code = f"""if True:
        import multiprocessing, os, signal, sys
        from pathlib import Path
        from normless_lab.data import load_data
        data = load_data("image_folder", root=Path(sys.argv[1]), size=8, resize=10, workers=2)
        batches = data.test_batches(1)
        next(batches)
        pids = [child.pid for child in multiprocessing.active_children()]
        print(*pids, flush=True)
        {end}
    """
    command = [sys.executable, "-W", "ignore", "-c", code, str(folders)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    workers = [int(pid) for pid in ended.stdout.split()]
    assert len(workers) == 2, ended.stderr
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_test_images_are_resized_and_cut_in_the_centre(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(256, size=(10, 16, 3), dtype=np.uint8)
    for file in (tmp_path / "train/only/a.png", tmp_path / "test/only/a.png"):
        file.parent.mkdir(parents=True)
        Image.fromarray(picture).save(file)
    data = load_data("image_folder", root=tmp_path, **SMALL)
    (batch,) = data.test_batches(1, device="cpu")
    pixels = (batch.inputs[0] * data.std[:, None, None] + data.mean[:, None, None]) * 255
    # The shorter side is 10 already, so only the middle 8×8 is cut out.
    np.testing.assert_array_equal(pixels.round().byte().numpy(), picture[1:9, 4:12].transpose(2, 0, 1))


def write_pets(folder: Path) -> Path:
    """Write three breeds with an image each in training and test, in the official layout."""
    lists: dict[str, list[str]] = {"trainval": ["#Image CLASS-ID SPECIES BREED ID"], "test": []}
    (folder / "annotations").mkdir(parents=True)
    for label, breed in enumerate(("Abyssinian", "american_bulldog", "beagle"), start=1):
        for number, name in enumerate(lists):
            save(folder / "images" / f"{breed}_{number}.jpg", 255 - 100 * number)
            lists[name].append(f"{breed}_{number} {label} 1 {label}")
    for name, lines in lists.items():
        (folder / "annotations" / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_pets_are_read_and_their_wrong_lists_are_named(tmp_path: Path) -> None:
    folder = write_pets(tmp_path / "oxford-iiit-pet")
    data = load_data("pets", root=tmp_path, download=False, **SMALL)
    assert (data.name, data.classes, data.image_shape) == ("pets", 3, (3, 8, 8))
    assert data.train.labels.tolist() == data.test_labels.tolist() == [0, 1, 2]
    assert "3 train / 3 test, 3 classes" in data.provenance
    (batch,) = data.test_batches(3)
    assert red(data, batch) == pytest.approx([155] * 3, abs=3)
    (folder / "annotations" / "trainval.txt").write_text("beagle_7 3 1 3\n")
    with pytest.raises(DataFormatError, match=r"trainval.txt lists .*beagle_7\.jpg, which does not exist"):
        load_data("pets", root=tmp_path, **SMALL)


def test_a_share_of_each_class_is_held_out_by_the_seed(tmp_path: Path) -> None:
    sizes = (10, 5, 2)
    for label, size in enumerate(sizes):
        for number in range(size):
            save(tmp_path / f"class{label}" / f"{number}.png", 60 * label + 5 * number)
    (tmp_path / ".DS_Store").write_text("no class")

    def parts(seed: int, share: float = 0.2) -> tuple[set[str], set[str]]:
        data: Any = load_data("image_folder", root=tmp_path, validation=share, seed=seed, **SMALL)
        train, test = (
            {str(Path(path).relative_to(tmp_path)) for path in each.paths} for each in (data.train, data.test)
        )
        assert not train & test
        assert len(train | test) == sum(sizes)
        assert [sum(path.startswith(f"class{label}") for path in test) for label in range(3)] == [2, 1, 1]
        return train, test

    assert parts(0) == parts(0)
    assert parts(0) != parts(1)
    with pytest.raises(DataNotFoundError, match=r"validation=0\.2"):
        load_data("image_folder", root=tmp_path, **SMALL)
    with pytest.raises(ValueError, match=r"above 0 and below 1, got 1\.5"):
        parts(0, 1.5)


def test_nothing_is_held_out_of_a_folder_with_a_test_set_or_of_a_class_of_one(folders: Path) -> None:
    with pytest.raises(ValueError, match="has a test set, val/"):
        load_data("image_folder", root=folders, validation=0.2, **SMALL)
    (folders / "val").rename(folders / "unused")
    for number in range(2):
        (folders / "train" / "class1" / f"{number}.png").unlink()
    with pytest.raises(DataFormatError, match="class1 has one image"):
        load_data("image_folder", root=folders, validation=0.2, **SMALL)
