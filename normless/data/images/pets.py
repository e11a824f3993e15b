"""Oxford-IIIT Pet (Parkhi et al. 2012): 37 breeds, 3,680 training and 3,669 test images of many sizes."""

from __future__ import annotations

from pathlib import Path

from normless.data.downloads import fetch_images, fetch_missing
from normless.data.images.file_images import CropSizes, FileImages, Files, Listing
from normless.data.images.image_data import ImageData
from normless.errors import DataFormatError, DataNotFoundError

_ADDRESS = "https://www.robots.ox.ac.uk/~vgg/data/pets/data/"
_MD5 = {
    "images.tar.gz": "5c4f3ee8e5d25df40f4fd59a7f44e54c",
    "annotations.tar.gz": "95a8c909bbe2e81eed6a22bccdf3f68f",
}
# Below the root: our own name, torchvision's, and the root itself.
_FOLDERS = ("pets", "oxford-iiit-pet", ".")


def pets(
    *,
    root: Path,
    download: bool,
    size: int = 224,
    resize: int = 256,
    scale: tuple[float, float] = (0.08, 1.0),
    workers: int | None = None,
) -> ImageData:
    """The breeds of Oxford-IIIT Pet (Parkhi et al. 2012) from ``images`` and ``annotations``, or by download.

    The two folders lie in ``root/pets``, ``root/oxford-iiit-pet`` or ``root``. Images are cropped as by
    `image_folder`, which explains the other arguments; the trimaps are not read.

    Raises:
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a list is malformed, or an image that it names is missing.
        ImportError: torchvision is not installed.
        ValueError: the sizes make no sense.
    """
    sizes = CropSizes(size=size, resize=resize, scale=(scale[0], scale[1]))
    folder = next((root / name for name in _FOLDERS if is_pets(root / name)), None)
    if folder is None:
        folder = root / "pets"
        _fetch(root, folder, download=download)
    return FileImages(read_pets(folder), name="pets", source="official files", sizes=sizes, workers=workers)


def is_pets(folder: Path) -> bool:
    """Whether a folder has the data set's list of training images."""
    return (folder / "annotations" / "trainval.txt").is_file()


def read_pets(folder: Path) -> Listing:
    """The files that ``annotations/trainval.txt`` and ``annotations/test.txt`` list, in ``images``.

    Raises:
        DataNotFoundError: a list is missing.
        DataFormatError: a line is malformed, or an image that it names is missing.
    """
    train, test = (_listed(folder, folder / "annotations" / name) for name in ("trainval.txt", "test.txt"))
    return Listing(train, test, max(train.labels) + 1)


def _fetch(root: Path, folder: Path, *, download: bool) -> None:
    looked = (
        f"Oxford-IIIT Pet is not in {folder}, {root / _FOLDERS[1]} or {root}: expected images/ and annotations/ with "
        "trainval.txt and test.txt"
    )
    by_hand = "Put them there by hand, or name the folder that holds them with root."
    fetch_missing(
        looked,
        by_hand,
        lambda: fetch_images(folder, lambda _: [(_ADDRESS + name, name, digest) for name, digest in _MD5.items()]),
        download=download,
    )


def _listed(root: Path, file: Path) -> Files:
    """Read lines ``Abyssinian_100 1 1 1``: image, class from 1, and two columns that are not read."""
    if not file.is_file():
        raise DataNotFoundError(f"{file} is missing.")
    paths: list[str] = []
    labels: list[int] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) < 2 or not words[1].isdigit() or int(words[1]) < 1:
            raise DataFormatError(
                f"Line {number} of {file} is {line!r}; expected an image's name and its class from 1."
            )
        path = root / "images" / f"{words[0]}.jpg"
        if not path.is_file():
            raise DataFormatError(f"{path} is missing, but line {number} of {file} names it.")
        paths.append(str(path))
        labels.append(int(words[1]) - 1)
    if not paths:
        raise DataFormatError(f"{file} names no images.")
    return Files(tuple(paths), tuple(labels))
