"""The table of parallel texts, and `load_parallel_text`, which reads one by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from normless.data.parallel.grammar import grammar
from normless.data.parallel.multi30k import multi30k
from normless.data.parallel.parallel_folder import parallel_text
from normless.data.parallel.parallel_text import ParallelText
from normless.data.registry import load_by_name

TRANSLATION_SOURCES: dict[str, Callable[..., ParallelText]] = {
    "grammar": grammar,
    "multi30k": multi30k,
    "parallel_text": parallel_text,
}


def load_parallel_text(
    name: str, *, root: str | os.PathLike[str] | None = None, download: bool = True, **options: Any
) -> ParallelText:
    """Load sentence pairs by name, as in ``grammar`` or ``multi30k(source='en', target='de')``.

    Args:
        name: one of `TRANSLATION_SOURCES`, with options of its own in brackets if it has any.
        root: the folder with the data, by default `default_root`; downloads go to ``root/name``.
        download: whether a set that is not there may be downloaded.
        options: the same as in brackets.

    Raises:
        ValueError: no set has this name, or it has no such option.
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a file does not hold what it should.
    """
    return load_by_name(TRANSLATION_SOURCES, name, root=root, download=download, options=options)
