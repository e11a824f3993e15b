"""The errors of normless; each message says what was expected, what was given, and what to do."""

from __future__ import annotations

__all__ = [
    "AlreadyConvertedError",
    "ChangedCodeWarning",
    "DataFormatError",
    "DataNotFoundError",
    "EvaluationOnlyWarning",
    "FixedArgumentError",
    "InputsError",
    "LiftError",
    "MissingExtraError",
    "MissingValuesError",
    "NormlessError",
    "RecipeError",
    "UnresolvedStructureError",
    "UnstableConversionWarning",
    "UnsupportedEditError",
    "UntrustedCodeError",
]


class NormlessError(Exception):
    """Base of the errors below; the command line prints them as one sentence, without a traceback."""


class UnsupportedEditError(NormlessError, ValueError):
    """A network offers no place for an edit; the message names the module and the reason.

    Attributes:
        scheme: the scheme that the message names, or "".
    """

    scheme: str = ""


class AlreadyConvertedError(NormlessError, ValueError):
    """A scheme was applied to a network that already carries one."""


class UnresolvedStructureError(NormlessError, ValueError):
    """The residual structure of a network could not be read."""


class FixedArgumentError(NormlessError, ValueError):
    """A converted network repeats an operation more often than on the example inputs of its conversion."""


class RecipeError(NormlessError, ValueError):
    """A network cannot be saved as weights and a recipe, or cannot be loaded from them."""


class UntrustedCodeError(NormlessError, ValueError):
    """Data name code, FILE.py:NAME or MODULE:NAME, that nobody named in this process."""


class MissingExtraError(NormlessError, ModuleNotFoundError):
    """A library is not installed; the message names the extra that installs it."""


class InputsError(NormlessError, RuntimeError, ValueError):
    """A network does not run on its inputs, or a loss does not take its targets; the cause is the original error.

    Attributes:
        takes: the channels or features that a layer takes, if its input has another number.
    """

    takes: int | None = None


class DataNotFoundError(NormlessError, FileNotFoundError):
    """A data set is not on this machine; the message names the folders that were searched and where to put it."""


class DataFormatError(NormlessError, ValueError):
    """The content of a file of a data set does not match its layout; the message names the file."""


class LiftError(NormlessError, ValueError):
    """A module's forward code cannot be rewritten; the message says why, without the module's name."""


class EvaluationOnlyWarning(UserWarning):
    """A conversion was verified in evaluation mode only, since no training pass runs on the example inputs."""


class UnstableConversionWarning(UserWarning):
    """Signals of a converted network grow over depth until they are not finite; the message names the place."""


class ChangedCodeWarning(UserWarning):
    """The code of a saved network or its scheme changed since the network was saved."""


class MissingValuesError(NormlessError, RuntimeError):
    """Weights or example inputs without values are read, such as those on torch's device `meta`."""
