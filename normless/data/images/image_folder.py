"""Folders of image files: ImageNet's layout, one folder per class, and that of the Oxford-IIIT Pets."""

from __future__ import annotations

import os
from pathlib import Path

from normless.data.errors import DataFormatError, DataNotFoundError
from normless.data.images.file_images import CropSizes, FileImages, Files, Listing
from normless.data.images.image_data import ImageData
from normless.data.images.pets import is_pets, read_pets

_TEST_FOLDERS = ("val", "test")


def image_folder(
    *,
    root: Path,
    download: bool,
    size: int = 224,
    resize: int = 256,
    scale: tuple[float, float] = (0.08, 1.0),
    workers: int | None = None,
) -> ImageData:
    """Load ``root/train/<class>/*`` and ``root/val/<class>/*`` (or ``test``), or Oxford-IIIT Pet's own files.

    Training images are cropped at random (RandomResizedCrop), test images resized and cropped in the centre.
    Normalization is by ImageNet's mean and standard deviation. With both ``val`` and ``test``, ``val`` is the
    test set, since ImageNet's ``test`` has no labels. Nothing is downloaded.

    Args:
        root: holds ``train`` and ``val``/``test``, or ``images`` and ``annotations``.
        download: without effect.
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


def _class_folders(root: Path) -> Listing:
    tests = [root / name for name in _TEST_FOLDERS if (root / name).is_dir()]
    if not tests:
        raise DataNotFoundError(
            f"{root} has train/ but neither {' nor '.join(f'{name}/' for name in _TEST_FOLDERS)}."
        )
    names = _class_names(root / "train")
    other = _class_names(tests[0])
    if names != other:
        difference = ", ".join(sorted(set(names) ^ set(other))[:5])
        raise DataFormatError(
            f"The class folders of {root / 'train'} and {tests[0]} differ, for instance in {difference}."
        )
    train, test = (_files_by_class(folder, names) for folder in (root / "train", tests[0]))
    return Listing(train, test, len(names))


def _class_names(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise DataFormatError(f"{folder} holds no folders; expected one for each class.")
    return names


def _files_by_class(folder: Path, names: list[str]) -> Files:
    from PIL import Image

    suffixes = set(Image.registered_extensions())
    paths: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        found = sorted(
            entry.path
            for entry in os.scandir(folder / name)
            if os.path.splitext(entry.name)[1].lower() in suffixes  # noqa: PTH122 - a Path for each of 10⁶ files is slow
        )
        if not found:
            raise DataFormatError(f"{folder / name} holds no image.")
        paths.extend(found)
        labels.extend([label] * len(found))
    return Files(tuple(paths), tuple(labels))
