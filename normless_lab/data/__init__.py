"""Labelled images, and the table of data sets; an epoch of images is a pure function of the seed and the epoch."""

from normless.extras import require_extra
from normless.lazy import attach

require_extra("lab", "Reading data sets", "PIL", "pyarrow", "scipy", "torchvision")

__getattr__, __dir__, __all__ = attach(
    __name__, __file__, ["Augmentation", "Batch", "DATA", "ImageData", "Split", "in_memory", "load_data"]
)
