"""Schemes without the edit that gives weights the scale of the norms."""

from __future__ import annotations

import inspect
from typing import Any

from normless.schemes import SCHEMES
from normless.spec import parse_call, split_terms

KEEP = "keep_scale"


def without_kept_scale(scheme: str) -> str:
    """Return the text of a scheme with `keep_scale=False` where it takes the argument and does not state it.

    The other arguments stay as they are written, since the text is part of the hash of a run.
    """
    first, *further = split_terms(scheme)
    name, arguments = parse_call(first)
    if KEEP in inspect.signature(SCHEMES.find(name)).parameters and KEEP not in arguments:
        first = f"{first[:-1]}, {KEEP}=False)" if arguments else f"{name}({KEEP}=False)"
    return " + ".join([first, *further])


def as_printed(scheme: str) -> str:
    """Return the text of a scheme without `keep_scale=False`: the papers' own schemes leave weights as drawn."""
    terms = []
    for name, arguments in map(parse_call, split_terms(scheme)):
        shown = [f"{key}={_text(value)}" for key, value in arguments.items() if (key, value) != (KEEP, False)]
        terms.append(f"{name}({', '.join(shown)})" if shown else name)
    return " + ".join(terms)


def _text(value: Any) -> str:
    """Return an argument as it is written: a formula such as 1/sqrt(L) is a text without quotes."""
    return value if isinstance(value, str) and not value.isidentifier() else repr(value)
