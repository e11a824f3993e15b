"""Image files in the layout of ImageNet or the Oxford-IIIT Pets, decoded by worker processes during training."""

from __future__ import annotations

import atexit
import hashlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from normless.errors import DataFormatError, DataNotFoundError, NormlessError
from normless.state import preserve_random_state
from normless_lab.data._augmentation import AUGMENTATIONS, Augmentation, Draws
from normless_lab.data._downloads import BY_ROOT, fetch_files, find_or_fetch
from normless_lab.data._image_data import ImageData
from normless_lab.process import available_cores


def batches_of(dataset: Dataset[Any], keys: list[Any], *, workers: int, pin_memory: bool) -> Iterator[Any]:
    """Return the collated examples of each list of keys, read by worker processes; 0 workers read in this one.

    An example that cannot be read is a `NormlessError` that the dataset returns in its place; it is raised here.
    """
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_sampler=keys,
        num_workers=workers,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # else the loader would draw from the global one
        multiprocessing_context=_start_method() if workers else None,
        worker_init_fn=_ignore_sigterm,
        collate_fn=_collated,
    )
    batches = iter(loader)
    # The traceback of an error and a suspended generator keep workers alive, and Python waits for them at exit.
    end = partial(_end, batches, os.getpid())
    atexit.register(end)
    try:
        for batch in batches:
            if isinstance(batch, NormlessError):
                raise batch
            yield batch
    finally:
        end()
        atexit.unregister(end)


def _collated(examples: list[Any]) -> Any:
    """Return a batch, or the error of the first example that could not be read."""
    error = next((example for example in examples if isinstance(example, NormlessError)), None)
    return default_collate(examples) if error is None else error


def _end(batches: Any, owner: int) -> None:
    """End the workers of an iterator, except in a process that was forked from its own.

    A worker that still reads after some seconds is killed, since it ignores SIGTERM, by which torch would end it.
    """
    workers = getattr(batches, "_workers", ())
    if not workers or os.getpid() != owner:
        return
    try:
        batches._shutdown_workers()
    finally:
        for worker in workers:
            worker.kill()


def _start_method() -> str | None:
    """Return how to start the worker processes; None for Python's default.

    In a spawned worker of a sweep the default is to spawn them too, which takes seconds of imports in each epoch.
    """
    return "fork" if sys.platform == "linux" and multiprocessing.parent_process() is not None else None


def _ignore_sigterm(_: int) -> None:
    """Leave SIGTERM, which a cluster sends to every process of a job, to the process that trains: it saves first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

PETS_ADDRESS = "https://www.robots.ox.ac.uk/~vgg/data/pets/data/"
PETS_DIGESTS = {
    "images.tar.gz": "5c4f3ee8e5d25df40f4fd59a7f44e54c",
    "annotations.tar.gz": "95a8c909bbe2e81eed6a22bccdf3f68f",
}
_TEST_FOLDERS = ("val", "test")
# Beside those of torchvision. Pillow knows documents too (.eps, .pdf), for which it starts other programs.
_EXTENSIONS = (".avif", ".gif", ".jp2")
_MOST_WORKERS, _WORTH_WORKERS = 8, 256

_Crop = Callable[[Any], Any]
# An example and the seed of its crop.
_Key = tuple[int, int]


def image_folder(
    *,
    root: Path,
    size: int = 224,
    resize: int = 256,
    scale: tuple[float, float] = (0.08, 1.0),
    workers: int | None = None,
    validation: float | None = None,
    seed: int = 0,
) -> ImageData:
    """Class folders ``root/train/<class>`` and ``root/val/<class>`` (or ``test``), or Oxford-IIIT Pet's own files.

    With `validation`, class folders ``root/<class>``, as torchvision's ImageFolder reads them, or ``root/train``
    alone: this share of the images of each class is the test set.

    Training images are cropped at random (RandomResizedCrop), test images resized and cropped in the centre.
    Normalization is by ImageNet's mean and standard deviation. With both ``val`` and ``test``, ``val`` is the
    test set, since ImageNet's ``test`` has no labels. Nothing is downloaded.

    Args:
        root: has ``train`` and ``val``/``test``, or ``images`` and ``annotations``; or a folder for each class.
        size: side in pixels of the images that come out.
        resize: shorter side in pixels to which a test image is resized before its centre is cut out.
        scale: the least and the greatest part of a training image's area that a crop takes.
        workers: processes that decode; by default one per core of this process, at most 8, and none for few images.
        validation: share of the images of each class, above 0 and below 1, for a folder without a test set.
        seed: of the choice of these images.

    Raises:
        ValueError: the sizes make no sense.
    """
    crops = _crops(size, resize, scale)
    sets = _class_folders(root) or _pets(root) if validation is None else _held_out(root, validation, seed)
    if sets is None:
        raise DataNotFoundError(
            f"{root} has neither train/<class>/ with {' or '.join(_TEST_FOLDERS)}/<class>/, nor images/ with "
            "annotations/trainval.txt and annotations/test.txt (Oxford-IIIT Pet). Of a folder for each class, as "
            "torchvision's ImageFolder reads it, the data set image_folder(validation=0.2) holds a fifth of each "
            f"class out as the test set; else name the right folder {BY_ROOT}."
        )
    return _images("image_folder", f"image files of {root.resolve().name}", sets, size, crops, workers)


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
    crops = _crops(size, resize, scale)
    sets = find_or_fetch(
        "pets",
        root,
        [_pets],
        lambda folder: fetch_files(folder, PETS_ADDRESS, PETS_DIGESTS),
        layout="images/ and annotations/ with trainval.txt and test.txt",
        download=download,
        other_names=("oxford-iiit-pet",),
    )
    return _images("pets", "official files", sets, size, crops, workers)


class LabelledPaths(NamedTuple):
    """Paths of N images and their labels, int64 [N]."""

    paths: tuple[str, ...]
    labels: Tensor

    def take(self, rows: Tensor) -> LabelledPaths:
        """The files at some rows [M]."""
        return LabelledPaths(tuple(self.paths[row] for row in rows.tolist()), self.labels[rows])


# Training files, test files and the number of classes.
_Sets = tuple[LabelledPaths, LabelledPaths, int]


@dataclass(kw_only=True, eq=False, repr=False)
class FileImages(ImageData):
    """Images that torch's DataLoader reads from files on demand.

    Each training image's crop is drawn from a seed of its own, so it does not depend on which worker decodes
    it. Flip, cutout and mixup happen on the device.

    The crops are those of a training and of a test image, to `image_shape`.
    """

    train: LabelledPaths
    test: LabelledPaths
    crops: tuple[_Crop, _Crop]
    workers: int | None

    def _check_augmentation(self, augmentation: Augmentation) -> None:
        if augmentation.crop:
            raise ValueError(
                f"{self.name} already crops at random, with RandomResizedCrop; "
                f"crop must be 0, got {augmentation.crop}."
            )
        super()._check_augmentation(augmentation)

    def _training_images(
        self, draws: Draws, steps: list[Tensor], augmentation: Augmentation, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        order, seeds = draws.order.tolist(), draws.seed.tolist()
        keys = [[(order[row], seeds[row]) for row in rows.tolist()] for rows in steps]
        return self._load(_Decoder(self.train, self.crops[0]), keys, device)

    def _testing_images(self, steps: list[Tensor], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        keys = [[(row, 0) for row in rows.tolist()] for rows in steps]
        return self._load(_Decoder(self.test, self.crops[1]), keys, device)

    def _load(
        self, decoder: _Decoder, keys: list[list[_Key]], device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        workers = self.workers
        if workers is None:
            # Starting a worker takes as long as reading some hundred files.
            many = sum(map(len, keys)) >= _WORTH_WORKERS
            workers = min(_MOST_WORKERS, available_cores()) if many else 0
        batches = batches_of(decoder, keys, workers=workers, pin_memory=device.type == "cuda")
        for images, labels in batches:
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def _checksum(self) -> str:
        """Of the files' names, lengths and labels: reading every image would take hours on ImageNet."""
        digest = hashlib.sha256()
        for files in (self.train, self.test):
            for file, label in zip(map(Path, files.paths), files.labels.tolist(), strict=True):
                digest.update(f"{file.parent.name}/{file.name} {file.stat().st_size} {label}\n".encode())
        return f"sha256 of file names, lengths and labels {digest.hexdigest()[:12]}"


class _Decoder(Dataset[tuple[Tensor, int] | DataFormatError]):
    """Decodes one file: image [3, size, size] as bytes, and its label; or returns the error that names the file.

    A worker process returns the error, since torch would add the traceback of the worker to the message.
    """

    def __init__(self, files: LabelledPaths, transform: _Crop) -> None:
        self.paths, self.labels = files.paths, files.labels.tolist()
        self.transform = transform

    def __getitem__(self, key: _Key) -> tuple[Tensor, int] | DataFormatError:
        index, seed = key
        path = self.paths[index]
        # Pillow and torchvision raise errors of many kinds for damaged files.
        try:
            # Reading a pipe would wait for ever.
            if not Path(path).is_file():
                return DataFormatError(f"Cannot decode {path}: it is not a file.")
            with Image.open(path) as file:
                image = file.convert("RGB")
            # torchvision draws from the global generator: it gets this example's seed, and its own state back.
            with preserve_random_state():
                torch.default_generator.manual_seed(seed)
                return self.transform(image), self.labels[index]
        except Exception as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
            return DataFormatError(f"Cannot decode {path}: {reason.rstrip('.')}.")


def _crops(size: int, resize: int, scale: tuple[float, float]) -> tuple[_Crop, _Crop]:
    """The transformations of a training and of a test image."""
    if not 1 <= size <= resize:
        raise ValueError(f"Expected 1 ≤ size ≤ resize, got size={size}, resize={resize}.")
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError(f"scale is 0 < least ≤ greatest ≤ 1 of an image's area, got {scale}.")
    from torchvision.transforms import v2

    training = v2.Compose([v2.RandomResizedCrop(size, scale=scale), v2.PILToTensor()])
    testing = v2.Compose([v2.Resize(resize), v2.CenterCrop(size), v2.PILToTensor()])
    return training, testing


def _images(
    name: str, source: str, sets: _Sets, size: int, crops: tuple[_Crop, _Crop], workers: int | None
) -> FileImages:
    """Return the data of training files, test files and a number of classes."""
    train, test, classes = sets
    return FileImages(
        name=name,
        classes=classes,
        image_shape=(3, size, size),
        source=source,
        train=train,
        test=test,
        mean=torch.tensor(IMAGENET_MEAN),
        std=torch.tensor(IMAGENET_STD),
        default_augmentation=AUGMENTATIONS[name],
        crops=crops,
        workers=workers,
    )


def _class_folders(root: Path) -> _Sets | None:
    """Return training files, test files and the number of classes; None without a folder ``train``."""
    train, *tests = (root / name for name in ("train", *_TEST_FOLDERS))
    if not train.is_dir():
        return None
    test = next(filter(Path.is_dir, tests), None)
    if test is None:
        raise DataNotFoundError(
            f"{root} has train/ but neither {' nor '.join(f'{name}/' for name in _TEST_FOLDERS)}."
        )
    names, test_names = _classes(train), _classes(test)
    if names != test_names:
        difference = ", ".join(sorted(set(names) ^ set(test_names))[:5])
        raise DataFormatError(f"The class folders of {train} and {test} differ, for instance in {difference}.")
    return _files(train, names), _files(test, names), len(names)


def _held_out(root: Path, share: float, seed: int) -> _Sets:
    """Return training files, test files (a share of each class) and the number of classes, of class folders."""
    if not 0 < share < 1:
        raise ValueError(f"Expected validation, a share of the images, above 0 and below 1, got {share}.")
    tests = [name for name in _TEST_FOLDERS if (root / "train").is_dir() and (root / name).is_dir()]
    if tests:
        raise ValueError(f"{root} has a test set, {tests[0]}/; leave validation={share} out.")
    if not root.is_dir():
        raise DataNotFoundError(f"There is no folder {root}; name the right folder {BY_ROOT}.")
    folder = root / "train" if (root / "train").is_dir() else root
    names = _classes(folder)
    files, generator = _files(folder, names), torch.Generator().manual_seed(seed)
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for number, name in enumerate(names):
        rows = (files.labels == number).nonzero().flatten()
        if len(rows) < 2:
            raise DataFormatError(f"{folder / name} has one image; each class needs one to train and one to test.")
        order = rows[torch.randperm(len(rows), generator=generator)]
        first = min(max(round(share * len(rows)), 1), len(rows) - 1)
        parts[0].append(order[first:].sort().values)
        parts[1].append(order[:first].sort().values)
    train, test = (files.take(torch.cat(rows)) for rows in parts)
    return train, test, len(names)


def _classes(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not names:
        raise DataFormatError(f"{folder} holds no folders; expected one for each class.")
    return names


def _files(folder: Path, classes: list[str]) -> LabelledPaths:
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    numbers = {name: number for number, name in enumerate(classes)}
    try:
        files = make_dataset(str(folder), numbers, extensions=(*IMG_EXTENSIONS, *_EXTENSIONS))
    except FileNotFoundError as error:
        raise DataFormatError(f"{folder} has a class without images: {str(error).partition('.')[0]}.") from error
    paths, labels = zip(*files, strict=True)
    return LabelledPaths(paths, torch.tensor(labels))


def _pets(folder: Path) -> _Sets | None:
    """Return training files, test files and the number of classes; None without a list of training images."""
    if not (folder / "annotations" / "trainval.txt").is_file():
        return None
    train, test = (_listed(folder, folder / "annotations" / name) for name in ("trainval.txt", "test.txt"))
    return train, test, int(train.labels.max()) + 1


def _listed(root: Path, file: Path) -> LabelledPaths:
    """Read lines ``Abyssinian_100 1 1 1``: image, class from 1, and two columns that are not read."""
    columns = {"image": str, "label": int}
    try:
        table = pd.read_csv(file, sep=r"\s+", comment="#", names=[*columns], usecols=[0, 1], dtype=columns)
    except (OSError, ValueError) as error:
        raise DataFormatError(f"{file} is not a list of images and their classes: {error}.") from error
    paths = [root / "images" / f"{name}.jpg" for name in table["image"]]
    missing = next((path for path in paths if not path.is_file()), None)
    if missing is not None or table.empty or table["label"].min() < 1:
        reason = "no images or a class below 1" if missing is None else f"{missing}, which does not exist"
        raise DataFormatError(f"{file} lists {reason}.")
    return LabelledPaths(tuple(map(str, paths)), torch.from_numpy(table["label"].to_numpy() - 1))
