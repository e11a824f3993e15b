"""The errors normless raises on purpose; each message says what was expected, what came, what to do."""

from __future__ import annotations


class NormlessError(Exception):
    """Base of the errors below; the command line prints them as one sentence, without a traceback."""


class UnsupportedEdit(NormlessError, ValueError):  # noqa: N818 - the name is part of the public surface
    """A network offers no place for an edit; the message names the module and the reason."""


class AlreadyConvertedError(NormlessError, ValueError):
    """A scheme was applied to a network that already carries one."""


class UnresolvedStructureError(NormlessError, ValueError):
    """The residual structure of a network could not be read."""


class FixedArgumentError(NormlessError, ValueError):
    """A converted module was called with another value of an argument than its rewritten code was made for."""


class RecipeError(NormlessError, ValueError):
    """A network cannot be saved as weights and a recipe, or not be loaded from them."""


class DataNotFoundError(NormlessError, FileNotFoundError):
    """A data set is not on this machine; the message says where it was looked for and where to put it."""


class DataFormatError(NormlessError, ValueError):
    """A file of a data set has another content than its layout promises; the message names the file."""
