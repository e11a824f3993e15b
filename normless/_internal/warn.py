"""Warn at the line that called the library."""

from __future__ import annotations

import sys
import warnings

# How the modules begin that may be between a caller and the code that warns.
_BETWEEN = ("normless.", "normless_", "contextlib", "torch.")


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning of the innermost line outside of the library, whichever of its functions called which."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
