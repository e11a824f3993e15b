from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normless.errors import DataFormatError
from normless_lab.data._small_images import read_batch

# What Python 2 and NumPy 1 wrote into the official files: {"data": an array [[1, 2]] of bytes, "labels": [3]}.
PYTHON_2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87"
    b"Rq\x05(K\x01K\x01K\x02\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff"
    b"\xff\xff\xffK\x00tb\x89U\x02\x01\x02tbU\x06labelsq\x08]q\x09K\x03au."
)


class Calls:
    """Pickles as a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def written(path: Path, content: object, protocol: int = 2) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def test_official_pickle_of_python_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(PYTHON_2)
    batch = read_batch(path)
    assert batch["data"].tolist() == [[1, 2]]
    assert batch["data"].dtype == np.uint8
    assert batch["labels"] == [3]


def test_a_call_of_anything_else_is_refused_and_not_made(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    for function, arguments in (
        (Path.touch, (trace,)),
        (eval, (f"open({str(trace)!r}, 'w')",)),
        (np.save, (str(trace), np.zeros(1))),
        (getattr, ("", "format")),
    ):
        path = written(tmp_path / "batch", {b"data": Calls(function, *arguments)})
        with pytest.raises(DataFormatError, match=r"asks for .* no CIFAR batch needs"):
            read_batch(path)
    assert not list(tmp_path.glob("trace*"))


def test_the_stand_ins_cannot_be_changed_by_a_file(tmp_path: Path) -> None:
    changing = b"\x80\x02c_codecs\nencode\n}U\x01aK\x01sb."
    path = tmp_path / "batch"
    path.write_bytes(changing)
    with pytest.raises(DataFormatError, match="gives a function a state"):
        read_batch(path)
