"""The open table of data sets, and reading one by its name with options in brackets."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from normless.data.images.image_data import ImageData
from normless.data.parallel.parallel_text import ParallelText
from normless.data.text.labelled_text import LabelledText
from normless.registry import Registry
from normless.spec import parse_call

DATA: Registry[Any] = Registry("data set", "data")


Data = TypeVar("Data", ImageData, LabelledText, ParallelText)


def default_root() -> Path:
    """Where data sets lie unless a root is given: the folder NORMLESS_DATA names, or ``~/.cache/normless``."""
    return Path(os.environ.get("NORMLESS_DATA", "~/.cache/normless")).expanduser()


def load_by_name(
    name: str,
    kind: type[Data],
    *,
    root: str | os.PathLike[str] | None,
    download: bool,
    options: Mapping[str, Any],
) -> Data:
    """Read a data set by a text such as ``cifar10(train=5000)``.

    Args:
        name: a key of `DATA`, FILE.py:NAME or MODULE:NAME, with options in brackets. The names of the set's parts are
            options too, the numbers of examples to take.
        kind: what is expected.
        root: the folder with the data, by default `default_root`; passed to functions with that parameter.
        download: whether a set that is not there may be downloaded; passed likewise.
        options: the same as in brackets.

    Raises:
        ValueError: no set has this name, it has no such option, or it is of another kind.
    """
    source, written = parse_call(name)
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
    folder = default_root() if root is None else Path(root).expanduser()
    place = {key: value for key, value in (("root", folder), ("download", download)) if key in parameters}
    data = load(**place, **{option: value for option, value in chosen.items() if option in own})
    if not isinstance(data, kind):
        what = getattr(data, "kind", f"a {type(data).__name__}")
        raise ValueError(f"The data set {source} is {what}; expected {kind.kind}.")
    taken = {part: chosen[part] for part in sizes if chosen.get(part) is not None}
    smaller: Data = data.subset(**taken) if taken else data
    return smaller
