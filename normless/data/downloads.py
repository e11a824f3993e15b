"""Downloads, each verified by its digest; of images by torchvision's functions, of text by torch's."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from http.client import HTTPException
from pathlib import Path
from types import ModuleType

from normless.errors import DataNotFoundError
from normless.extras import MissingExtraError, import_extra

# Address, file name, MD5 in hexadecimal.
Download = tuple[str, str, str]


def fetch_missing(looked: str, by_hand: str, fetch: Callable[[], None], *, download: bool) -> None:
    """Download a data set that is not there.

    Args:
        looked: where it was looked for and in what form, as a sentence without its full stop.
        by_hand: what to do without a download, as a sentence.
        fetch: downloads it.
        download: whether it may.

    Raises:
        DataNotFoundError: it may not, or the download failed; says both sentences.
    """
    if not download:
        raise DataNotFoundError(f"{looked}, and downloading is switched off. {by_hand}")
    try:
        fetch()
    except (DataNotFoundError, MissingExtraError) as error:
        raise DataNotFoundError(f"{looked}. {error} {by_hand}") from error


def fetch_images(folder: Path, files: Callable[[ModuleType], Iterable[Download]]) -> None:
    """Download files and unpack archives into a folder.

    Args:
        folder: where the content goes.
        files: given ``torchvision.datasets``, which knows the addresses of many sets, what to download.

    Raises:
        MissingExtraError: torchvision is not installed.
        DataNotFoundError: a download failed; nothing of that file is left.
    """
    datasets = import_extra("zoo", "Downloading", "torchvision.datasets")
    from torchvision.datasets.utils import download_and_extract_archive, download_url

    for url, name, digest in files(datasets):
        with _staged(folder, url) as staging:
            if name.endswith(".tar.gz"):
                download_and_extract_archive(url, str(staging), filename=name, md5=digest, remove_finished=True)
            else:
                download_url(url, str(staging), name, digest)


def fetch_files(folder: Path, address: str, digests: Mapping[str, str]) -> None:
    """Download the files of one address into a folder.

    Args:
        folder: where they go.
        address: what precedes each name.
        digests: for each file's name its SHA-256, in hexadecimal.

    Raises:
        DataNotFoundError: a download failed or has another digest; nothing of that file is left.
    """
    from torch.hub import download_url_to_file

    for name, digest in digests.items():
        url = address + name
        with _staged(folder, url) as staging:
            download_url_to_file(url, str(staging / name), hash_prefix=digest, progress=False)


@contextmanager
def _staged(folder: Path, url: str) -> Iterator[Path]:
    """A folder to download into, whose content moves to its place when all of it is complete."""
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
    except (OSError, RuntimeError, HTTPException) as error:
        raise DataNotFoundError(f"Downloading {url} into {folder} failed: {error}.") from error
