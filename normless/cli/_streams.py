"""Standard streams that are closed, have another encoding than UTF-8, or are read by nobody any more."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

READER_GONE = 141
"""The exit code if the reader of standard output has ended, as of ``normless list | head -1``: 128 + SIGPIPE."""


@contextmanager
def usable_streams() -> Iterator[None]:
    """Within the context, discard what goes to a closed stream, and escape characters that a stream cannot encode."""
    _open_handles()
    former = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    texts = [stream for stream in former.values() if isinstance(stream, io.TextIOWrapper)]
    # In the POSIX locale, standard output has surrogateescape, which encodes no other character either.
    escaped = [(stream, stream.errors) for stream in texts if stream.errors in ("strict", "surrogateescape")]
    for stream, _ in escaped:
        stream.reconfigure(errors="backslashreplace")
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123 - not a place for files
        for name in (name for name, stream in former.items() if stream is None):
            setattr(sys, name, nowhere)
        try:
            yield
        finally:
            for name, stream in former.items():
                setattr(sys, name, stream)
            for stream, errors in escaped:
                with suppress(ValueError, OSError):
                    stream.reconfigure(errors=errors)


def is_unicode() -> bool:
    """Whether standard output can encode every character."""
    return (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "") == "utf8"


def discard_rest() -> None:
    """Discard what standard output still holds and cannot write."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:  # noqa: PTH123 - as above
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _open_handles() -> None:
    """Open the handles 0 to 2 if they are closed: the next file to be opened would receive what is printed."""
    for handle in range(3):
        try:
            os.fstat(handle)
        except OSError:
            # The lowest free handle, for child processes too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
