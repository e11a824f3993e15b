"""The messages of a command about errors, on standard error."""

from __future__ import annotations

import sys
from traceback import TracebackException, print_exception

from normless.code_names import FILES_OF_USERS
from normless.errors import NormlessError
from normless.extras import named_missing

# Errors with messages for the user.
MISTAKES = (NormlessError, ValueError, OSError, ModuleNotFoundError)


def report(error: BaseException, *, debug: bool) -> int:
    """Print what is wrong, and return the exit code of the command.

    A mistake is printed as one sentence (exit code 2, or the error's `exit_code`), an error in a file of the user
    with its traceback from there on, and any other error as a sentence that mentions ``--debug`` (exit code 1).
    """
    own = None if isinstance(error, NormlessError) else _from_own_file(error)
    if own is None and isinstance(error, ModuleNotFoundError):
        error = named_missing("This command", error)
    sentence = " ".join(str(error).split()) or type(error).__name__
    if debug:
        print_exception(error, file=sys.stderr)
    elif own is not None:
        sys.stderr.write("".join(own.format(chain=False)))
    if own is not None:
        sys.stderr.write(f"normless: an error in your file, {type(error).__name__}: {sentence}\n")
        return 1
    if isinstance(error, MISTAKES):
        sys.stderr.write(f"normless: {sentence}\n")
        return int(getattr(error, "exit_code", 2))
    if _lacks_memory(error):
        lines = str(error).strip().splitlines() or ["all of it is in use"]
        sys.stderr.write(
            f"normless: there is not enough memory ({lines[0].rstrip('.')}); use a smaller network, smaller images "
            "or a smaller batch.\n"
        )
        return 1
    advice = "" if debug else "; normless --debug COMMAND … shows where"
    sys.stderr.write(f"normless: an unexpected {type(error).__name__}: {sentence.rstrip('.')}{advice}.\n")
    return 1


def _lacks_memory(error: BaseException) -> bool:
    """Whether memory was refused: by Python, or by torch (named, since torch may not be imported) on CPU or GPU."""
    by_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and by_torch)


def _from_own_file(error: BaseException) -> TracebackException | None:
    """Return the error of a user's file without the lines that led there, or None for other errors."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename not in FILES_OF_USERS:
        at = at.tb_next
    # For a file with a null byte, the error does not name the file.
    if at is None and not (isinstance(error, SyntaxError) and error.filename in {*FILES_OF_USERS, None}):
        return None
    return TracebackException(type(error), error, at)
