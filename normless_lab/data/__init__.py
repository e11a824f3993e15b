"""Labelled images, and the table of data sets; an epoch of images is a pure function of the seed and the epoch."""

from typing import TYPE_CHECKING

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "Reading data sets", "PIL", "pyarrow", "scipy", "torchvision")

if TYPE_CHECKING:
    from normless.errors import DataFormatError as DataFormatError
    from normless.errors import DataNotFoundError as DataNotFoundError
    from normless_lab.data.downloads import BY_ROOT as BY_ROOT
    from normless_lab.data.downloads import fetch_files as fetch_files
    from normless_lab.data.downloads import find_or_fetch as find_or_fetch
    from normless_lab.data.downloads import first_of as first_of
    from normless_lab.data.epoch_randomness import check_share as check_share
    from normless_lab.data.epoch_randomness import epoch_sequence as epoch_sequence
    from normless_lab.data.images.augmentation import AUGMENTATIONS as AUGMENTATIONS
    from normless_lab.data.images.augmentation import Augmentation as Augmentation
    from normless_lab.data.images.image_data import Batch as Batch
    from normless_lab.data.images.image_data import ImageData as ImageData
    from normless_lab.data.images.tensor_images import Split as Split
    from normless_lab.data.images.tensor_images import in_memory as in_memory
    from normless_lab.data.sources import DATA as DATA
    from normless_lab.data.sources import DataSet as DataSet
    from normless_lab.data.sources import default_root as default_root
    from normless_lab.data.sources import load_data as load_data
    from normless_lab.data.sources import sources_of as sources_of
    from normless_lab.data.tables import find_shards as find_shards
    from normless_lab.data.tables import find_splits as find_splits
    from normless_lab.data.tables import read_parquet_file as read_parquet_file
else:
    __getattr__, __dir__, __all__ = attach(__name__, __file__)
