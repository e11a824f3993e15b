from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from normless_lab.data import (
    Augmentation,
    Batch,
    DataFormatError,
    DataNotFoundError,
    ImageData,
    load_data,
    load_labelled_text,
    load_parallel_text,
)

pytest.importorskip("torchvision")

READERS: list[tuple[Callable[..., Any], str]] = [
    (load_data, "image_folder"),
    (load_labelled_text, "labelled_text"),
    (load_parallel_text, "parallel_text"),
]
SMALL = {"size": 8, "resize": 10, "workers": 0}


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


def test_test_images_are_resized_and_cut_in_the_centre(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(256, size=(10, 16, 3), dtype=np.uint8)
    for split in ("train", "test"):
        (tmp_path / split / "only").mkdir(parents=True)
        Image.fromarray(picture).save(tmp_path / split / "only" / "a.png")
    data = load_data("image_folder", root=tmp_path, **SMALL)
    (batch,) = data.test_batches(1, device="cpu")
    pixels = (batch.inputs[0] * data.std[:, None, None] + data.mean[:, None, None]) * 255
    # The shorter side is 10 already, so only the middle 8×8 is cut out.
    np.testing.assert_array_equal(pixels.round().byte().numpy(), picture[1:9, 4:12].transpose(2, 0, 1))


def textured(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        (tmp_path / split / "only").mkdir(parents=True)
        for number in range(4):
            picture = Image.fromarray(generator.integers(256, size=(30, 30, 3), dtype=np.uint8))
            picture.save(tmp_path / split / "only" / f"{number}.png")
    return tmp_path


@pytest.mark.parametrize("augmentation", [Augmentation(flip=True), Augmentation(flip=True, cutout=3, mixup=0.7)])
def test_an_epoch_is_a_pure_function_of_seed_and_epoch(tmp_path: Path, augmentation: Augmentation) -> None:
    data = load_data("image_folder", root=textured(tmp_path), **SMALL)

    def epoch(seed: int, number: int, **share: int) -> list[Batch]:
        return list(data.train_batches(2, seed=seed, epoch=number, augmentation=augmentation, device="cpu", **share))

    first = epoch(0, 1)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    again = epoch(0, 1)
    assert torch.equal(torch.get_rng_state(), state)
    parts = zip(epoch(0, 1, rank=0, world_size=2), epoch(0, 1, rank=1, world_size=2), strict=True)
    for one, two, (left, right) in zip(first, again, parts, strict=True):
        assert torch.equal(one.inputs, two.inputs)
        assert torch.equal(one.targets, two.targets)
        assert torch.equal(one.inputs, torch.cat([left.inputs, right.inputs]))
    for other in (epoch(1, 0), epoch(0, 2)):
        assert not torch.equal(other[0].inputs, first[0].inputs)


# Newer Pythons warn of any fork of a process with threads, which is how torch starts its workers.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_decode_the_same_images(tmp_path: Path) -> None:
    textured(tmp_path)
    epochs = []
    for workers in (0, 1):
        data = load_data("image_folder", root=tmp_path, size=8, resize=10, workers=workers)
        batches = data.train_batches(2, seed=0, epoch=0, augmentation=Augmentation(flip=True), device="cpu")
        epochs.append(torch.cat([batch.inputs for batch in batches]))
    assert torch.equal(*epochs)


def kinds_of_workers(root: Path) -> set[str]:
    """The classes of the processes that decode a batch."""
    data = load_data("image_folder", root=root, size=8, resize=10, workers=2)
    batches = data.train_batches(2, seed=0, epoch=0, augmentation=Augmentation(), device="cpu")
    next(batches)
    return {type(process).__name__ for process in multiprocessing.active_children()}


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_the_worker_of_a_sweep_forks_the_processes_that_decode(folders: Path) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(kinds_of_workers, folders).result() == {"ForkProcess"}


def test_oxford_pets_official_files_are_read(tmp_path: Path) -> None:
    for number, name in enumerate(("Abyssinian_1", "Abyssinian_2", "beagle_1", "beagle_2")):
        save(tmp_path / "images" / f"{name}.jpg", 60 * number)
    lists = tmp_path / "annotations"
    lists.mkdir()
    (lists / "trainval.txt").write_text("#Image CLASS-ID SPECIES BREED ID\nAbyssinian_1 1 1 1\nbeagle_2 2 2 1\n")
    (lists / "test.txt").write_text("Abyssinian_2 1 1 1\nbeagle_1 2 2 1\n")
    data = load_data("image_folder", root=tmp_path, **SMALL)
    assert (data.classes, data.train_labels.tolist(), data.test_labels.tolist()) == (2, [0, 1], [0, 1])
    (batch,) = data.test_batches(2, device="cpu")
    np.testing.assert_allclose(red(data, batch), [60, 120], atol=3)  # JPEG is not exact
    (lists / "test.txt").write_text("Abyssinian_2 one\n")
    with pytest.raises(DataFormatError, match=r"Line 1 of .*test.txt is 'Abyssinian_2 one'"):
        load_data("image_folder", root=tmp_path, **SMALL)
    (lists / "test.txt").write_text("Abyssinian_3 1 1 1\n")
    with pytest.raises(DataFormatError, match=r"Abyssinian_3.jpg is missing, but line 1"):
        load_data("image_folder", root=tmp_path, **SMALL)
    (lists / "test.txt").unlink()
    with pytest.raises(DataNotFoundError, match=r"test.txt is missing"):
        load_data("image_folder", root=tmp_path, **SMALL)


def test_subset_takes_some_files(folders: Path) -> None:
    part = load_data("image_folder", root=folders, **SMALL).subset(train=4, test=2)
    assert (part.train_size, part.test_size) == (4, 2)
    assert part.train_labels.bincount().tolist() in ([2, 2], [3, 1])
    (batch,) = part.train_batches(4, seed=0, epoch=0, augmentation=Augmentation(), device="cpu")
    assert len(set(red(part, batch))) == 4
    assert "subset of 4 of 8 train and 2 of 3 test" in part.provenance


def without_test(root: Path) -> None:
    (root / "val").rename(root / "elsewhere")


def without_classes(root: Path) -> None:
    (root / "train").rename(root / "elsewhere")
    (root / "train").mkdir()


def with_other_class(root: Path) -> None:
    save(root / "val" / "class9" / "0.png", 0)


def with_empty_class(root: Path) -> None:
    for split in ("train", "val"):
        (root / split / "class2").mkdir()


def with_neither(root: Path) -> None:
    (root / "train").rename(root / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (without_test, DataNotFoundError, "neither val/ nor test/"),
        (without_classes, DataFormatError, "holds no folders"),
        (with_other_class, DataFormatError, "differ, for instance in class9"),
        (with_empty_class, DataFormatError, "without images: .*class2"),
        (with_neither, DataNotFoundError, r"neither train/<class>/.* right folder by --data-root \(data_root in a"),
    ],
)
def test_wrong_folders_are_named(
    folders: Path, spoil: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    spoil(folders)
    with pytest.raises(error, match=message):
        load_data("image_folder", root=folders, **SMALL)


def test_a_path_is_no_name(tmp_path: Path) -> None:
    """The sentence says which data set reads a folder of this kind, and how the folder is named."""
    path = tmp_path / "pictures"
    said = r"A folder of your own is read by the data set {0}, with --data {0} --data-root FOLDER \(in Python, root="
    for load, reader in READERS:
        with pytest.raises(ValueError, match=rf"^There is no data set or folder '{path}'\. {said.format(reader)}"):
            load(str(path))
    path.mkdir()
    with pytest.raises(ValueError, match=rf"^'{path}' is no data set's name\. {said.format('image_folder')}"):
        load_data(str(path))


def test_damaged_image_is_named(folders: Path) -> None:
    (folders / "val" / "class0" / "1.png").write_bytes(b"not an image")
    data = load_data("image_folder", root=folders, **SMALL)
    with pytest.raises(DataFormatError, match=r"Cannot decode .*1.png"):
        list(data.test_batches(3, device="cpu"))


def test_what_does_not_apply_is_refused(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_data("image_folder", root=folders, **SMALL)
    with pytest.raises(ValueError, match="crop must be 0, got 4"):
        data.train_batches(2, seed=0, epoch=0, augmentation=Augmentation(crop=4), device="cpu")
    with pytest.raises(ValueError, match="1 ≤ size ≤ resize"):
        load_data("image_folder", root=folders, size=9, resize=8)
    with pytest.raises(ValueError, match="scale is 0 < least"):
        load_data("image_folder", root=folders, scale=(0.0, 1.0))
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match=r"pip install 'normless\[zoo\]'"):
        load_data("image_folder", root=folders, **SMALL)
