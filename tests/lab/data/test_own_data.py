"""Data sets from outside the package: a function in a file, of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from normless_lab.data import load_data, load_labelled_text, load_parallel_text

FILE = """
from normless_lab.data import ImageData, LabelledText, ParallelText, load_data, load_labelled_text, load_parallel_text

def photos(brightness: float = 1.0) -> ImageData:
    "Digits under another name."
    data = load_data("digits")
    data.name = f"photos {brightness}"
    return data

def opinions(root) -> LabelledText:
    assert root.name == "somewhere"
    return load_labelled_text("sentiment(train=40, test=10)")

def pairs() -> ParallelText:
    return load_parallel_text("grammar(train=50, validation=5, test=5)")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def test_a_function_of_a_file_is_a_data_set(file: Path) -> None:
    images = load_data(f"{file}:photos(brightness=2.0, train=20)")
    assert (images.name, images.train_size, images.test_size) == ("photos 2.0", 20, 360)
    assert load_labelled_text(f"{file}:opinions", root="somewhere").train.size == 40
    assert load_parallel_text(f"{file}:pairs(train=7)").train.size == 7


def test_another_kind_of_data_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match="data set grammar is parallel text; expected labelled images"):
        load_data("grammar(train=50, validation=5, test=5)")
    with pytest.raises(ValueError, match=r"mine.py:photos is labelled images; expected labelled text"):
        load_labelled_text(f"{file}:photos")
    with pytest.raises(ValueError, match=r"photos has no option colour; its options are brightness, train, test"):
        load_data(f"{file}:photos(colour=1)")
