"""Parallel text of the user's own: a folder of text files, of IWSLT's talks or of Parquet files."""

from __future__ import annotations

from pathlib import Path

from normless.data.errors import DataNotFoundError
from normless.data.parallel.iwslt import read_iwslt
from normless.data.parallel.parquet_pairs import read_parallel_parquet
from normless.data.parallel.parallel_text import PairSets, ParallelText
from normless.data.parallel.line_files import read_text_files


def parallel_text(
    *, root: Path, download: bool, source: str = "de", target: str = "en", test: str | None = None
) -> ParallelText:
    """Load the sentence pairs of the folder ``root``, in whichever layout it has them; ``download`` has no use.

    Args:
        root: the folder.
        download: without meaning here.
        source: of the language to translate, the files' ending or the column's name.
        target: of the language to translate to.
        test: stem of the test files, where they are text files; the only one there is if None.

    Raises:
        DataNotFoundError: the folder has none of the layouts.
        DataFormatError: a set is incomplete, or a file does not hold what it should.
    """
    found = find_pair_sets(root, source, target, name=root.name, test=test)
    if found is None:
        raise DataNotFoundError(
            f"{root} has neither train.{source} with train.{target} (plain or .gz), nor the talks of IWSLT "
            f"(train.tags.{source}-{target}.{source}), nor *train*.parquet. Name the right folder "
            "with root, or the languages by source=… and target=…."
        )
    origin = f"{found.kind} of {root.resolve().name}"
    return ParallelText("parallel_text", (source, target), origin, found.train, found.validation, found.test)


def find_pair_sets(folder: Path, source: str, target: str, *, name: str, test: str | None) -> PairSets | None:
    """The three sets of a folder, or in its ``data/`` or ``de-en/`` as the Hub keeps Parquet; None if not there.

    Args:
        folder: where to look.
        source: of the language to translate.
        target: of the language to translate to.
        name: of the data set; Parquet files that name it are taken before others.
        test: stem of the test files, where they are text files; the only one there is if None.

    Raises:
        DataFormatError: a set is incomplete, or a file does not hold what it should.
    """
    found = read_text_files(folder, source, target, test=test) or read_iwslt(folder, source, target)
    if found is not None:
        return found
    for below in (".", "data", f"{source}-{target}", f"{target}-{source}"):
        found = read_parallel_parquet(folder / below, name, source, target)
        if found is not None:
            return found
    return None
