"""Commands whose output is closed, full, of another encoding, or no longer read."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from normless.cli import main
from normless.cli._streams import READER_GONE


class _Refusing(io.RawIOBase):
    """A stream that raises an error when it is written to."""

    def __init__(self, error: OSError) -> None:
        self.error: OSError | None = error

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.error is not None:
            raise self.error
        return len(data)


@contextmanager
def _refused(error: OSError, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    raw = _Refusing(error)
    stream = io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        yield
    # It is flushed when it is released.
    raw.error = None


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_cannot_be_encoded_is_escaped(errors: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the POSIX locale, Python writes ASCII with surrogateescape."""
    out = io.BytesIO()
    stream = io.TextIOWrapper(out, encoding="ascii", errors=errors)
    monkeypatch.setattr(sys, "stdout", stream)
    for words in (["list"], ["list", "schemes", "--json"], ["inspect", "normless:dense(depth=2)", "--schemes"]):
        assert main(words) == 0
    assert stream.errors == errors, "as it was"
    assert out.getvalue().decode("ascii")


def test_a_reader_that_has_ended_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["list", "schemes"], ["--help"], ["list", "--json"]):
        with _refused(BrokenPipeError(errno.EPIPE, "Broken pipe"), monkeypatch):
            assert main(words) == READER_GONE
    assert capsys.readouterr().err == ""


def test_a_disk_without_space_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with _refused(OSError(errno.ENOSPC, "No space left on device"), monkeypatch):
        assert main(["list", "schemes"]) == 2
    assert "No space left" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="closes handles by a POSIX shell")
def test_no_file_gets_the_handle_of_a_closed_stream(tmp_path: Path) -> None:
    program = (
        "import os, sys; from normless.cli._streams import usable_streams\n"
        "with usable_streams():\n"
        "    file = os.open('file', os.O_RDWR | os.O_CREAT); print('printed'); print('told', file=sys.stderr)\n"
        "    assert file > 2; os.system('echo of a child; echo of a child >&2')\n"
    )
    shell = '"$0" -c "$1" <&- >&- 2>&-'
    subprocess.run(["/bin/sh", "-c", shell, sys.executable, program], cwd=tmp_path, check=True)
    assert (tmp_path / "file").read_bytes() == b""
