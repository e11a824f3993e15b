"""Digests of the user's files that a configuration names; other contents make it a different run."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Iterator
from functools import lru_cache
from pathlib import Path

from normless.saving import modules_of
from normless.spec import is_saved, split_source, split_terms

# In larger folders only the names and lengths of files count.
MOST_BYTES = 2**28


def contents_of(
    model: str, scheme: str, data: str, data_root: str | None, folders: Collection[str], *others: str
) -> dict[str, str]:
    """Digests of the `FILE.py`, saved networks, checkpoints and folders of data in these texts, as far as they exist.

    `folders` are the data sets that read a folder of the user, which is `data_root`; `others` are further texts.
    A `FILE.py` counts with what it imports of its own folder; downloaded data sets have none.
    """
    named = {str(path): path for text in (model, scheme, data, *others) for path in _paths(text)}
    if split_source(data)[1].partition("(")[0].strip() in folders and not split_source(data)[0]:
        from normless_lab.data import default_root

        named[data] = default_root() if data_root is None else Path(data_root).expanduser()
    # A sweep makes thousands of configurations: a folder of data is looked through once a second at most.
    second = int(time.monotonic())
    return {
        text: _digest(path, _stamp_within(second, path) if text == data else _stamp(path))
        for text, path in named.items()
        if os.path.exists(path)  # noqa: PTH110 - a text too long for a path is none
    }


def _paths(text: str) -> Iterator[Path]:
    """Return the files or folders in the text of a model, scheme or data set; a scheme may name several."""
    for term in split_terms(text):
        source = split_source(term)[0]
        if source.endswith(".py:"):
            yield Path(source[:-1])
    whole = text.strip()
    if whole.startswith("transformers:"):
        whole = whole.removeprefix("transformers:").strip()
        if "/" in whole or whole.endswith(".json"):
            yield Path(whole)
    elif is_saved(whole):
        yield Path(whole)


def _files(path: Path) -> list[Path]:
    """Return a file, with its modules if it is code; for a folder all its files, or those of a saved network."""
    if path.is_file():
        return modules_of(path) if path.suffix == ".py" else [path]
    if is_saved(path):
        return sorted(file for file in path.iterdir() if file.suffix in (".json", ".safetensors"))
    return sorted(file for file in path.rglob("*") if file.is_file())


@lru_cache(maxsize=8)
def _stamp_within(_second: int, path: Path) -> tuple[tuple[str, int, int], ...]:
    """`_stamp`, once in a second."""
    return _stamp(path)


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return names, lengths and times of the files, which tell whether a known digest is current."""
    times = ((file, file.stat()) for file in _files(path))
    return tuple((str(file), stat.st_size, stat.st_mtime_ns) for file, stat in times)


@lru_cache(maxsize=64)
def _digest(path: Path, stamp: tuple[tuple[str, int, int], ...]) -> str:
    """Return the SHA-256 of the names, lengths and contents of the files, independent of the folder's location."""
    whole, small = hashlib.sha256(), sum(size for _, size, _ in stamp) <= MOST_BYTES or is_saved(path)
    for name, size, _ in stamp:
        folder = path.parent if path.is_file() else path
        own = "" if Path(name) == path else Path(name).relative_to(folder).as_posix()
        whole.update(f"{own} {size}\n".encode())
        if small or path.is_file():
            with Path(name).open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()
