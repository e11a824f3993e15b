"""Downloads, each verified by its digest; of images by torchvision's functions, of text by torch's."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from http.client import HTTPException
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from normless.errors import DataNotFoundError
from normless.extras import MissingExtraError, import_extra

Data = TypeVar("Data")

# Address, file name, MD5 in hexadecimal.
Download = tuple[str, str, str]
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
    except (DataNotFoundError, MissingExtraError) as error:
        raise DataNotFoundError(f"{missing}. {error} {by_hand}") from error
    data = find([folder])
    if data is None:
        raise DataNotFoundError(f"The download of {name} into {folder} lacks {layout}. {by_hand}")
    return data


def fetch_images(folder: Path, files: Callable[[ModuleType], Iterable[Download]]) -> None:
    """Download the `files` that ``torchvision.datasets`` lists into a folder, and unpack archives there."""
    datasets = import_extra("zoo", "Downloading", "torchvision.datasets")
    from torchvision.datasets.utils import download_url

    for url, name, digest in files(datasets):
        with _staged(folder, url) as staging:
            download_url(url, str(staging), name, digest)
            if name.endswith(".tar.gz"):
                with tarfile.open(staging / name) as archive:
                    # Refuses members that would lie outside the folder.
                    archive.extractall(staging, filter="data")
                (staging / name).unlink()


def fetch_files(folder: Path, address: str, digests: Mapping[str, str]) -> None:
    """Download the files below an address into a folder; `digests` has the SHA-256 of each by name."""
    from torch.hub import download_url_to_file

    for name, digest in digests.items():
        with _staged(folder, address + name) as staging:
            download_url_to_file(address + name, str(staging / name), hash_prefix=digest, progress=False)


@contextmanager
def _staged(folder: Path, url: str) -> Iterator[Path]:
    """Yield a folder to download into; its contents are moved into place when all of them are complete."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as name,
            redirect_stdout(sys.stderr),
        ):
            yield Path(name)
            for item in Path(name).iterdir():
                target = folder / item.name
                if not target.exists():
                    item.rename(target)
    except (OSError, RuntimeError, HTTPException, tarfile.TarError) as error:
        for path in made:
            with suppress(OSError):
                path.rmdir()
        raise DataNotFoundError(f"Downloading {url} into {folder} failed: {error}.") from error
