"""Data sets from outside the package: a function in a file, of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from normless.code_names import module_of_file
from normless_lab.data import DataFormatError, Split, in_memory, load_data

FILE = """
from normless_lab.data import ImageData, load_data

def photos(brightness: float = 1.0) -> ImageData:
    "Digits under another name."
    data = load_data("digits")
    data.name = f"photos {brightness}"
    return data

class Sounds:
    kind, parts, reader = "labelled sounds", ("train",), "sound_folder"

    def subset(self, train):
        self.size = train
        return self

def sounds(root) -> Sounds:
    assert root.name == "somewhere"
    return Sounds()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_a_function_of_a_file_is_a_data_set_of_any_kind(file: Path) -> None:
    images = load_data(f"{file}:photos(brightness=2.0, train=20)")
    assert (images.name, images.train_size, images.test_size) == ("photos 2.0", 20, 360)
    kind = module_of_file(file).Sounds
    assert load_data(f"{file}:sounds(train=7)", root="somewhere", kind=kind).size == 7
    with pytest.raises(ValueError, match="sounds is labelled sounds; expected labelled images"):
        load_data(f"{file}:sounds", root="somewhere")
    with pytest.raises(ValueError, match="photos is labelled images; expected labelled sounds"):
        load_data(f"{file}:photos", kind=kind)
    with pytest.raises(ValueError, match=r"photos has no option colour; its options are brightness, train, test"):
        load_data(f"{file}:photos(colour=1)")
    with pytest.raises(ValueError, match="is read by the data set sound_folder"):
        load_data("some/folder", kind=kind)


@pytest.mark.parametrize(
    ("sizes", "shift", "told"),
    [
        ((0, 8), 0, "The training part of few holds 0 images"),
        ((8, 0), 0, "The test part of few holds 0 images"),
        ((8, 8), 1, "The training part of few has labels from 1 to 3; expected 0 to 2"),
        ((8, 8), -1, "The training part of few has labels from -1 to 1; expected 0 to 2"),
    ],
)
def test_a_set_in_memory_has_examples_with_labels(sizes: tuple[int, int], shift: int, told: str) -> None:
    splits = (Split(torch.zeros(n, 1, 8, 8, dtype=torch.uint8), torch.arange(n) % 3 + shift) for n in sizes)
    with pytest.raises(DataFormatError, match=told):
        in_memory("few", "mine", *splits, classes=3)
