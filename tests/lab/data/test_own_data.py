"""Data sets from outside the package: a function in a file, of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from normless.code_names import module_of_file
from normless_lab.data import load_data

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


def test_a_function_of_a_file_is_a_data_set_of_any_kind(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    images = load_data(f"{file}:photos(brightness=2.0, train=20)")
    assert (images.name, images.train_size, images.test_size) == ("photos 2.0", 20, 360)
    kind = module_of_file(file).Sounds
    assert load_data(f"{file}:sounds(train=7)", root="somewhere", kind=kind).size == 7
    for text, asked, told in (
        (f"{file}:sounds", {}, "sounds is labelled sounds; expected labelled images"),
        (f"{file}:photos(colour=1)", {}, "photos has no option colour; its options are brightness, train, test"),
        ("some/folder", {"kind": kind}, "is read by the data set sound_folder"),
    ):
        with pytest.raises(ValueError, match=told):
            load_data(text, root="somewhere", **asked)
