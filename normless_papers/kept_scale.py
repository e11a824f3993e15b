"""Schemes without the edit that gives weights the scale of the norms."""

from __future__ import annotations

import inspect

from normless.schemes import SCHEMES
from normless.spec import parse_call, split_terms


def without_kept_scale(scheme: str) -> str:
    """Return the text of a scheme with `keep_scale=False` where it takes the argument and does not state it."""
    first, *further = split_terms(scheme)
    name, arguments = parse_call(first)
    if "keep_scale" in inspect.signature(SCHEMES.find(name)).parameters and "keep_scale" not in arguments:
        first = f"{first[:-1]}, keep_scale=False)" if arguments else f"{name}(keep_scale=False)"
    return " + ".join([first, *further])
