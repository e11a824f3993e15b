"""Multi30k (Elliott et al. 2016): 29,000 captions of pictures in English, and their translations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from normless.data.downloads import fetch_files, find_or_fetch
from normless.data.parallel.parallel_folder import find_pair_sets
from normless.data.text_sets import PairSets, ParallelText
from normless.errors import DataNotFoundError

# The commit of github.com/multi30k/dataset whose files have the digests below.
ADDRESS = (
    "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)

DIGESTS = {
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}
TEST = "test_2016_flickr"


def multi30k(*, root: Path, download: bool, source: str = "de", target: str = "en", test: str = TEST) -> ParallelText:
    """Multi30k (Elliott et al. 2016): captions of pictures in English, and their translations.

    From text files or Parquet in ``root/multi30k`` or ``root``, or by download (German and English).

    Args:
        root: the folder of data sets, or the set's own.
        download: whether to download it into ``root/multi30k`` when it is in neither.
        source: of the language to translate: "de", "en", or "fr" and "cs" where their files are there.
        target: of the language to translate to.
        test: stem of the test files.

    Raises:
        DataNotFoundError: it is not there and could not, or should not, be downloaded.
        DataFormatError: a file does not hold what it should.
    """

    def find(folders: Sequence[Path]) -> PairSets | None:
        candidates = (find_pair_sets(folder, source, target, name="multi30k", test=test) for folder in folders)
        return next((sets for sets in candidates if sets is not None), None)

    def fetch(folder: Path) -> None:
        if {source, target} != {"de", "en"} or test != TEST:
            raise DataNotFoundError(
                f"Only German and English (de, en) with {TEST} can be downloaded, not {source}, {target} and {test}."
            )
        fetch_files(folder, ADDRESS, DIGESTS)

    layout = (
        f"train.{source}, train.{target}, val.{source}, val.{target}, {test}.{source} and {test}.{target}, plain or "
        ".gz, or Parquet files (*train*.parquet, *val*.parquet and *test*.parquet)"
    )
    sets = find_or_fetch("multi30k", root, find, fetch, layout=layout, download=download)
    return ParallelText(
        "multi30k", (source, target), f"{sets.kind}, test set {test}", sets.train, sets.validation, sets.test
    )
