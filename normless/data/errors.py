"""What can go wrong with files of images: they are not there, or they are not what they should be."""

from __future__ import annotations

from normless.errors import NormlessError


class DataNotFoundError(NormlessError, FileNotFoundError):
    """A data set is not on this machine; the message says where it was sought and where to put it."""


class DataFormatError(NormlessError, ValueError):
    """A file of a data set does not hold what its layout promises; the message names the file."""
