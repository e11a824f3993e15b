"""Folders of image files: ImageNet's layout, one folder per class, and that of the Oxford-IIIT Pets."""

from __future__ import annotations

import os
from pathlib import Path

from normless.data.downloads import fetch_images, find_or_fetch
from normless.data.images.file_images import CropSizes, FileImages, Files, Listing
from normless.data.images.image_data import ImageData
from normless.errors import DataFormatError, DataNotFoundError
from normless.extras import import_extra

PETS_ADDRESS = "https://www.robots.ox.ac.uk/~vgg/data/pets/data/"
PETS_MD5 = {
    "images.tar.gz": "5c4f3ee8e5d25df40f4fd59a7f44e54c",
    "annotations.tar.gz": "95a8c909bbe2e81eed6a22bccdf3f68f",
}
_TEST_FOLDERS = ("val", "test")


def image_folder(
    *,
    root: Path,
    size: int = 224,
    resize: int = 256,
    scale: tuple[float, float] = (0.08, 1.0),
    workers: int | None = None,
) -> ImageData:
    """Class folders ``root/train/<class>`` and ``root/val/<class>`` (or ``test``), or Oxford-IIIT Pet's own files.

    Training images are cropped at random (RandomResizedCrop), test images resized and cropped in the centre.
    Normalization is by ImageNet's mean and standard deviation. With both ``val`` and ``test``, ``val`` is the
    test set, since ImageNet's ``test`` has no labels. Nothing is downloaded.

    Args:
        root: holds ``train`` and ``val``/``test``, or ``images`` and ``annotations``.
        size: side in pixels of the images that come out.
        resize: shorter side in pixels to which a test image is resized before its centre is cut out.
        scale: the least and the greatest part of a training image's area that a crop takes.
        workers: processes that decode; by default one per core of this process, at most 8.

    Raises:
        DataNotFoundError: the root has neither layout.
        DataFormatError: the classes of the two folders differ, one has no images, or a list is malformed.
        ImportError: torchvision is not installed.
        ValueError: the sizes make no sense.
    """
    sizes = CropSizes(size=size, resize=resize, scale=(scale[0], scale[1]))
    if (root / "train").is_dir():
        listing = _class_folders(root)
    elif is_pets(root):
        listing = read_pets(root)
    else:
        raise DataNotFoundError(
            f"{root} has neither train/<class>/ with {' or '.join(_TEST_FOLDERS)}/<class>/, nor images/ with "
            "annotations/trainval.txt and annotations/test.txt (Oxford-IIIT Pet). Name the right folder with root."
        )
    return FileImages(
        listing,
        name="image_folder",
        source=f"image files of {root.resolve().name}",
        sizes=sizes,
        workers=workers,
    )


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

    37 breeds, 3,680 training and 3,669 test images. The two folders lie in ``root/pets``, ``root/oxford-iiit-pet`` or
    ``root``. Images are cropped as by `image_folder`, which explains the other arguments and errors.
    """
    sizes = CropSizes(size=size, resize=resize, scale=(scale[0], scale[1]))
    archives = [(f"{PETS_ADDRESS}{name}", name, digest) for name, digest in PETS_MD5.items()]
    listing = find_or_fetch(
        "pets",
        root,
        lambda folders: next((read_pets(folder) for folder in folders if is_pets(folder)), None),
        lambda folder: fetch_images(folder, lambda _: archives),
        layout="images/ and annotations/ with trainval.txt and test.txt",
        download=download,
        other_names=("oxford-iiit-pet",),
    )
    return FileImages(listing, name="pets", source="official files", sizes=sizes, workers=workers)


def _class_folders(root: Path) -> Listing:
    tests = [root / name for name in _TEST_FOLDERS if (root / name).is_dir()]
    if not tests:
        raise DataNotFoundError(
            f"{root} has train/ but neither {' nor '.join(f'{name}/' for name in _TEST_FOLDERS)}."
        )
    names, other = (_classes(folder) for folder in (root / "train", tests[0]))
    if names != other:
        difference = ", ".join(sorted(names.keys() ^ other.keys())[:5])
        raise DataFormatError(
            f"The class folders of {root / 'train'} and {tests[0]} differ, for instance in {difference}."
        )
    train, test = (_files(folder, names) for folder in (root / "train", tests[0]))
    return Listing(train, test, len(names))


def _classes(folder: Path) -> dict[str, int]:
    """Class names and their numbers."""
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise DataFormatError(f"{folder} holds no folders; expected one for each class.")
    return {name: number for number, name in enumerate(names)}


def _files(folder: Path, classes: dict[str, int]) -> Files:
    from PIL import Image

    listing = import_extra("zoo", "Listing class folders", "torchvision.datasets.folder")
    try:
        files = listing.make_dataset(str(folder), classes, extensions=tuple(Image.registered_extensions()))
    except FileNotFoundError as error:
        raise DataFormatError(f"{folder} has a class without images: {str(error).partition('.')[0]}.") from error
    return Files(tuple(path for path, _ in files), tuple(label for _, label in files))


def is_pets(folder: Path) -> bool:
    """Whether a folder has the data set's list of training images."""
    return (folder / "annotations" / "trainval.txt").is_file()


def read_pets(folder: Path) -> Listing:
    """The files that ``annotations/trainval.txt`` and ``annotations/test.txt`` list, in ``images``."""
    train, test = (_listed(folder, folder / "annotations" / name) for name in ("trainval.txt", "test.txt"))
    return Listing(train, test, max(train.labels) + 1)


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
