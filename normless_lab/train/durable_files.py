"""Files that are either unchanged or complete whenever the process is killed, and digests that detect damage."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from normless.saving import digest_of

DIGESTS_FILE = "digests.json"


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to, which replaces `path` when the block ends without an error.

    The file and its name are then on the disk and survive a loss of power. After an error (such as a full disk) the
    partial file is removed.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        _flush(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _flush(path.parent)


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are written to the disk."""
    if path.is_dir() and os.name == "nt":
        # Windows opens no folder.
        return
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Digests:
    """SHA-256 of files in a folder, in its `digests.json`; a file without a digest counts as intact."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / DIGESTS_FILE

    @contextmanager
    def replaced(self, path: Path, keep: Path | None = None) -> Iterator[Path]:
        """As the function `replaced`, with the digest; the former file is kept under the name `keep`, if any."""
        with replaced(path) as part:
            yield part
            listed = self._listed()
            former = listed.get(path.name, [])
            # The new digest is listed before the file has its name, and the former one until the next: a process that
            # is killed in between leaves a file with one of them.
            listed[path.name] = [digest_of(part), *former[:1]]
            if keep is not None:
                listed[keep.name] = [*former, *listed.get(keep.name, [])][:2]
            with replaced(self.path) as digests:
                digests.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
            if keep is not None and path.exists():
                path.replace(keep)

    def is_intact(self, path: Path) -> bool:
        """Return whether a file exists and is unchanged since it was written."""
        listed = self._listed().get(path.name)
        return listed is None or (path.exists() and digest_of(path) in listed)

    def _listed(self) -> dict[str, list[str]]:
        """Return the digests of each file and of the file that it replaced, by name; empty if they are unreadable."""
        if not self.path.exists():
            return {}
        try:
            listed = json.loads(self.path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            return {}
        entries = listed.items() if isinstance(listed, dict) else ()
        return {name: digests for name, digests in entries if isinstance(digests, list)}
