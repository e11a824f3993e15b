"""Downloads, each checked by its digest: of images by torchvision's addresses, of text by addresses of our own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from http.client import HTTPException
from pathlib import Path
from types import ModuleType

from normless.data.errors import DataNotFoundError


def fetch_archive(dataset: str, folder: Path) -> None:
    """Download the archive of a class of ``torchvision.datasets`` (CIFAR10, CIFAR100) and unpack it.

    Raises:
        DataNotFoundError: torchvision is not installed, or the download failed; nothing is left behind.
    """
    known = getattr(_torchvision_datasets(), dataset)
    with _staged(folder, known.url) as staging:
        from torchvision.datasets.utils import download_and_extract_archive

        download_and_extract_archive(
            known.url, str(staging), filename=known.filename, md5=known.tgz_md5, remove_finished=True
        )


def fetch_svhn(folder: Path) -> None:
    """Download ``train_32x32.mat`` and ``test_32x32.mat`` into a folder.

    Raises:
        DataNotFoundError: torchvision is not installed, or the download failed; nothing is left behind.
    """
    files = _torchvision_datasets().SVHN.split_list
    for split in ("train", "test"):
        url, filename, checksum = files[split]
        with _staged(folder, url) as staging:
            from torchvision.datasets.utils import download_url

            download_url(url, str(staging), filename, checksum)


def fetch_archives(folder: Path, address: str, digests: Mapping[str, str]) -> None:
    """Download archives that lie beside each other, and unpack them into a folder.

    Args:
        folder: where their content goes.
        address: what precedes each name.
        digests: for each archive's name its MD5, in hexadecimal.

    Raises:
        DataNotFoundError: torchvision is not installed, or a download failed; nothing of that archive is left behind.
    """
    _torchvision_datasets()
    for name, digest in digests.items():
        url = address + name
        with _staged(folder, url) as staging:
            from torchvision.datasets.utils import download_and_extract_archive

            download_and_extract_archive(url, str(staging), filename=name, md5=digest, remove_finished=True)


def fetch_files(folder: Path, address: str, digests: Mapping[str, str]) -> None:
    """Download files that lie beside each other into a folder.

    Args:
        folder: where they go.
        address: what precedes each name.
        digests: for each file's name its SHA-256, in hexadecimal.

    Raises:
        DataNotFoundError: a download failed, or what came has another digest; nothing of that file is left behind.
    """
    from torch.hub import download_url_to_file

    for name, digest in digests.items():
        url = address + name
        with _staged(folder, url) as staging:
            download_url_to_file(url, str(staging / name), hash_prefix=digest, progress=False)


def _torchvision_datasets() -> ModuleType:
    try:
        from torchvision import datasets
    except ImportError as error:
        raise DataNotFoundError(
            'Downloading needs torchvision, which is not installed: pip install "normless[zoo]".'
        ) from error
    assert isinstance(datasets, ModuleType)
    return datasets


@contextmanager
def _staged(folder: Path, url: str) -> Iterator[Path]:
    """A folder to download into, whose content moves to its place only when all of it has come."""
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
