"""Reading a data set of a table by its name, written with its options as in ``gaussian(classes=4)``."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from normless.spec import parse_call

Data = TypeVar("Data")


def default_root() -> Path:
    """Where data sets lie unless a root is given: the folder NORMLESS_DATA names, or ``~/.cache/normless``."""
    return Path(os.environ.get("NORMLESS_DATA", "~/.cache/normless")).expanduser()


def load_by_name(
    sources: Mapping[str, Callable[..., Data]],
    name: str,
    *,
    root: str | os.PathLike[str] | None,
    download: bool,
    options: Mapping[str, Any],
) -> Data:
    """Call the source of a table that a text names, with the options in its brackets and some more.

    Args:
        sources: functions of keyword arguments, ``root`` and ``download`` among them.
        name: a key of `sources`, with options of its own in brackets if it has any.
        root: the folder with the data, by default `default_root`.
        download: whether a set that is not there may be downloaded.
        options: the same as in brackets.

    Raises:
        ValueError: no set has this name, or it has no such option.
    """
    source, written = parse_call(name)
    if source not in sources:
        raise ValueError(f"There is no data set {source!r}; there are {', '.join(sources)}.")
    load = sources[source]
    known = [option for option in inspect.signature(load).parameters if option not in ("root", "download")]
    unknown = [option for option in {**written, **options} if option not in known]
    if unknown:
        offer = f"its options are {', '.join(known)}" if known else "it has none"
        raise ValueError(f"The data set {source} has no option {', '.join(unknown)}; {offer}.")
    folder = default_root() if root is None else Path(root).expanduser()
    return load(root=folder, download=download, **{**written, **options})
