"""The command line: ``normless COMMAND …``.

Nothing here imports torch: the module of a command is imported when that command is chosen. What commands of other
packages share is listed in ``__init__.pyi``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from normless.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
__all__ += ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    A mistake of the user is one sentence on standard error and exit code 2; an interruption is exit code 130, a run
    that was saved and stopped at its time limit 75, and by SIGTERM 143.
    """
    from normless.cli.parser import main_help, parse
    from normless.errors import NormlessError

    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(main_help())
        return 0 if words else 2
    if words[0] == "--version":
        from normless import __version__

        sys.stdout.write(f"normless {__version__}\n")
        return 0
    try:
        run, namespace = parse(words)
        return run(namespace)
    except (NormlessError, ValueError, OSError, ModuleNotFoundError) as error:
        sys.stderr.write(f"normless: {' '.join(str(error).split())}\n")
        return int(getattr(error, "exit_code", 2))
    except KeyboardInterrupt:
        sys.stderr.write("normless: interrupted.\n")
        return 130
    except SystemExit as stop:
        # Help was printed: argparse ends the program, a caller of this function goes on.
        return stop.code if isinstance(stop.code, int) else 0
