"""Data sets in folders, and their download; every downloaded file is verified by its digest."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

from normless.errors import DataNotFoundError

Data = TypeVar("Data")

BY_ROOT = "by --data-root (data_root in a configuration, root in load_data)"
"""How a folder of data is named, for messages."""


def first_of(read: Callable[[Path], Data | None], folders: Iterable[Path]) -> Data | None:
    """Return the data from the first folder that contains it; None if it is not found."""
    return next((data for data in map(read, folders) if data is not None), None)


def find_or_fetch(
    name: str,
    root: Path,
    readers: Sequence[Callable[[Path], Data | None]],
    fetch: Callable[[Path], None],
    *,
    layout: str,
    download: bool,
    other_names: Sequence[str] = (),
) -> Data:
    """Find a data set in ``root/name``, in another folder of the root or in `root`, or fetch it into ``root/name``.

    Each reader reads the set from a folder, or returns None; each reader is tried in every folder before the next
    reader. The layout describes the set's files.

    Raises:
        DataNotFoundError: the data set does not exist and could not, or should not, be downloaded.
    """

    def find(folders: Sequence[Path]) -> Data | None:
        return next((data for read in readers if (data := first_of(read, folders)) is not None), None)

    folder = root / name
    folders = [folder, *(root / other_name for other_name in other_names), root]
    data = find(folders)
    if data is not None:
        return data
    missing = f"The data set {name} is not in {' or '.join(map(str, folders))}: expected {layout}"
    by_hand = f"Put them by hand into {folder}, or name the folder that holds them {BY_ROOT}."
    if not download:
        raise DataNotFoundError(f"{missing}, and downloading is switched off. {by_hand}")
    try:
        fetch(folder)
    except DataNotFoundError as error:
        raise DataNotFoundError(f"{missing}. {error} {by_hand}") from error
    data = find([folder])
    if data is None:
        raise DataNotFoundError(f"The download of {name} into {folder} lacks {layout}. {by_hand}")
    return data


def fetch_files(folder: Path, address: str, digests: Mapping[str, str]) -> None:
    """Download the files below an address into a folder; files ``.tar.gz`` are unpacked.

    `digests` has the MD5 or SHA-256 of each file by name, in hexadecimal. A file, or what is unpacked from it, is
    moved into the folder when it is complete.

    Raises:
        DataNotFoundError: a download failed, its digest is another, or it cannot be unpacked.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    for name, digest in digests.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as staging:
                _fetch(Path(staging) / name, address + name, digest)
                for path in Path(staging).iterdir():
                    if not (folder / path.name).exists():
                        path.rename(folder / path.name)
        except (OSError, HTTPException, tarfile.TarError) as error:
            for path in made:
                with suppress(OSError):
                    path.rmdir()
            raise DataNotFoundError(f"Downloading {address}{name} into {folder} failed: {error}.") from error


def _fetch(file: Path, url: str, digest: str) -> None:
    """Download a file and verify it; replace an archive by its members."""
    from torch.hub import download_url_to_file

    download_url_to_file(url, str(file), progress=sys.stderr.isatty())
    with file.open("rb") as content:
        found = hashlib.file_digest(content, "md5" if len(digest) == 32 else "sha256").hexdigest()
    if found != digest:
        raise OSError(f"its digest is {found}, expected {digest}")
    if file.name.endswith(".tar.gz"):
        # The filter refuses members that would lie outside the folder.
        shutil.unpack_archive(file, file.parent, filter="data")
        file.unlink()
