"""The program: a command, its exit code and its messages about mistakes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from normless._version import __version__
from normless.cli._mistakes import report
from normless.cli._parser import interruption, main_help, parse
from normless.cli._streams import READER_GONE, discard_rest, usable_streams


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    A mistake of the user is one sentence on standard error and exit code 2, an error in the user's own file its
    traceback and exit code 1, as is any other error; with ``--debug`` each is the whole traceback. An interruption is
    exit code 130, a run that was saved and stopped at its time limit 75, and by SIGTERM 143; 141 if the reader of
    standard output has ended.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    with usable_streams():
        try:
            code = _run([word for word in words if word != "--debug"], debug=debug)
            sys.stdout.flush()
            return code
        except OSError as error:
            discard_rest()
            return READER_GONE if isinstance(error, BrokenPipeError) else report(error, debug=debug)


def _run(words: Sequence[str], *, debug: bool) -> int:
    """Run one command; an OSError of standard output is raised."""
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(main_help())
        return 0 if words else 2
    if words[0] == "--version":
        sys.stdout.write(f"normless {__version__}\n")
        return 0
    try:
        if null := next((word for word in words if "\0" in word), None):
            raise ValueError(f"Expected arguments without null bytes, got {null!r}.")
        run, namespace = parse(words)
    except SystemExit as stop:
        # Help was printed: argparse ends the program, a caller of this function goes on.
        return stop.code if isinstance(stop.code, int) else 0
    except Exception as error:
        return report(error, debug=debug)
    try:
        return run(namespace)
    except KeyboardInterrupt:
        sys.stderr.write(f"normless: {interruption(words)}\n")
        return 130
    except BrokenPipeError:
        raise
    except (Exception, SystemExit) as error:
        return report(error, debug=debug)
