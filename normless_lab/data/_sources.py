"""The data sets of this package, and the functions that read a data set of each kind by its name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, get_type_hints

from typing_extensions import TypeVar

from normless.registry import Registry, check_arguments, did_you_mean
from normless.spec import parse_call
from normless_lab.data._image_data import ImageData
from normless_lab.data._image_files import image_folder, pets
from normless_lab.data._small_images import cifar10, cifar100, correlated, digits, gaussian, svhn

DATA: Registry[Any] = Registry("data set", "data", package="normless_lab")


class DataSet(Protocol):
    """A data set of some kind.

    Attributes:
        kind: what it is, in words, for messages.
        parts: the parameters of `subset` that select the first examples of a part.
        reader: the name of the data set of this kind that reads a folder of the user.
    """

    kind: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    reader: ClassVar[str]

    def subset(self, *args: Any, **sizes: Any) -> Any:
        """The same set with fewer examples."""


Data = TypeVar("Data", bound=DataSet, default=ImageData)

for _source in (digits, cifar10, cifar100, svhn, image_folder, pets, gaussian, correlated):
    DATA.register(_source.__name__)(_source)


def default_root() -> Path:
    """Return the default folder of data sets: the one in NORMLESS_DATA, or ``~/.cache/normless``."""
    return Path(os.environ.get("NORMLESS_DATA", "~/.cache/normless")).expanduser()


def sources_of(kind: type[Any]) -> Mapping[str, Callable[..., Any]]:
    """Return the registered data sets of a kind, such as `ImageData`, by the return annotation of their functions."""
    return {name: load for name, load in DATA.items() if get_type_hints(load).get("return") is kind}


def load_data(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = True,
    kind: type[Data] = ImageData,  # type: ignore[assignment]
    **options: Any,
) -> Data:
    """Load a data set by name, as in ``digits``, ``cifar10(train=5000, test=1000)`` or ``mine.py:photos``.

    Args:
        name: of a set in `DATA`, or FILE.py:NAME or MODULE:NAME; with options of its own in brackets.
        root: the folder with the data, by default `default_root`; downloads go to ``root/name``.
        download: whether a missing set may be downloaded.
        kind: the kind of data that is expected, by default labelled images.
        options: the same as in brackets.

    Raises:
        ValueError: the name or an option is unknown, or the set is of another kind.
        DataNotFoundError: the set does not exist and could not, or should not, be downloaded.
        DataFormatError: a file does not have the expected contents.
    """
    _refuse_paths(name, kind)
    source, written = parse_call(name)
    if source not in DATA and ":" not in source:
        raise ValueError(
            f"There is no data set {source!r} of {kind.kind}.{did_you_mean(source, sources_of(kind))} There are "
            f"{', '.join(sources_of(kind))}; one of your own is FILE.py:NAME or MODULE:NAME."
        )
    load = DATA.find(source)
    parameters = inspect.signature(load).parameters
    own: list[str] = [option for option in parameters if option not in ("root", "download")]
    sizes: list[str] = [part for part in kind.parts if part not in own]
    chosen = {**written, **options}
    unknown = [option for option in chosen if option not in own and option not in sizes]
    if unknown:
        known = [*own, *sizes]
        offer = f"its options are {', '.join(known)}" if known else "it has none"
        raise ValueError(f"The data set {source} has no option {', '.join(unknown)}; {offer}.")
    for part in sizes:
        if not isinstance(chosen.get(part), int | None):
            raise ValueError(f"In the data set {source}, {part} is a whole number, not {chosen[part]!r}.")
    taken = {option: value for option, value in chosen.items() if option in own}
    check_arguments(f"data set {source}", taken, load, given=("root", "download"))
    folder = default_root() if root is None else Path(root).expanduser()
    place = {key: value for key, value in (("root", folder), ("download", download)) if key in parameters}
    data = load(**place, **taken)
    if not isinstance(data, kind):
        what = getattr(data, "kind", f"a {type(data).__name__}")
        raise ValueError(f"The data set {source} is {what}; expected {kind.kind}.")
    parts = {part: chosen[part] for part in sizes if chosen.get(part) is not None}
    smaller: Data = data.subset(**parts) if parts else data
    return smaller


def _refuse_paths(name: str, kind: type[DataSet]) -> None:
    """Raise a ValueError for a path instead of a name."""
    path = name.strip()
    if ":" in path or "(" in path or not any(separator in path for separator in ("/", os.sep)):
        return
    found = f"{path!r} is no data set's name" if os.path.exists(path) else f"There is no data set or folder {path!r}"  # noqa: PTH110 - a text too long for a path is none
    raise ValueError(
        f"{found}. A folder of your own is read by the data set {kind.reader}, with --data {kind.reader} --data-root "
        "FOLDER (in Python, root=FOLDER)."
    )
