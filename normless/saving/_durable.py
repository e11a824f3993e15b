"""Files that are unchanged or complete whenever the process is killed, and digests that detect damage."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

if sys.platform != "win32":
    import fcntl

DIGESTS_FILE = "digests.json"


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_values(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain data as JSON, in hexadecimal; it is the same for data read back from JSON."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


@contextmanager
def replaced(path: Path, token: str = "") -> Iterator[Path]:
    """Yield a path beside `path` to write to, which replaces `path` when the block ends without an error.

    The file and its name are then on the disk and survive a loss of power. After an error (such as a full disk) the
    partial file is removed. The folder is created if necessary. Processes that write to one path at once each pass a
    `token` of their own, which becomes part of the name of the partial file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(".".join(filter(None, (path.name, token, "part"))))
    # A link of this name would be followed.
    part.unlink(missing_ok=True)
    try:
        yield part
        _flush(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _flush(path.parent)


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Wait until no other process is in this block with the same folder; the system ends the block of a dead process.

    Yields whether processes can wait for one another there: not on file systems without locks, as some on a network.
    """
    if sys.platform == "win32":
        yield True  # Windows opens no folder; there several processes must not write at once.
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        locked = False
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
            locked = True
        yield locked
    finally:
        os.close(handle)


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are written to the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folder.
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def inside(folder: Path, *names: str) -> Path:
    """Return a path in a folder, by names that may come from data; a ValueError if it leads out of the folder."""
    path = folder.joinpath(*names)
    if folder.resolve() not in path.resolve().parents:
        raise ValueError(f"Expected a place in the folder {folder}, got {'/'.join(names)!r}, which is outside of it.")
    return path


class Digests:
    """SHA-256 of files in a folder, in its `digests.json`; a file without a digest there counts as damaged."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / DIGESTS_FILE

    @contextmanager
    def replaced(self, path: Path, keep: Path | None = None) -> Iterator[Path]:
        """As the function `replaced`, with the digest; the former file is kept under the name `keep`, if any."""
        with replaced(path) as part:
            yield part
            listed = self._listed()
            there = _of_intact(path, listed)
            # The new file and the one that is there both count as intact until the next replacement, since the
            # process may be killed, or the renaming fail, after the digests are written.
            listed[path.name] = [digest_of(part), *there]
            if keep is not None:
                listed[keep.name] = [*there, *_of_intact(keep, listed)]
            with replaced(self.path) as digests:
                digests.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
            if keep is not None and there:
                path.replace(keep)

    def is_intact(self, path: Path) -> bool:
        """Return whether a file is unchanged since it was written, or was not written and is not there."""
        listed = self._listed()
        return bool(_of_intact(path, listed)) or not (path.exists() or path.name in listed)

    def _listed(self) -> dict[str, list[str]]:
        """Return the digests that each file may have, by name; empty if they are unreadable."""
        try:
            listed = json.loads(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        entries = listed.items() if isinstance(listed, dict) else ()
        return {name: digests for name, digests in entries if isinstance(digests, list)}


def _of_intact(path: Path, listed: Mapping[str, list[str]]) -> list[str]:
    """Return the digest of a file, or nothing if it is missing or its digest is not among those listed for it."""
    digest = digest_of(path) if path.is_file() else None
    return [digest] if digest is not None and digest in listed.get(path.name, []) else []
