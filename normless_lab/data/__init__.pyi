from ._augmentation import (
    AUGMENTATIONS as AUGMENTATIONS,
    Augmentation as Augmentation,
    check_share as check_share,
    epoch_sequence as epoch_sequence,
)
from ._downloads import (
    BY_ROOT as BY_ROOT,
    fetch_files as fetch_files,
    find_or_fetch as find_or_fetch,
    first_of as first_of,
)
from ._image_data import Batch as Batch, ImageData as ImageData, Split as Split, in_memory as in_memory
from ._parquet import find_shards as find_shards, find_splits as find_splits, read_parquet_file as read_parquet_file
from ._sources import DATA as DATA, default_root as default_root, load_data as load_data, sources_of as sources_of
