"""Which cases of the matrix run in `make test`: each row, each scheme and each property, at fixed places."""

from __future__ import annotations

from gallery import ROWS

from matrix.properties import property_names
from matrix.refusals import listed
from matrix.scheme_facts import SCHEMES

SMALL = [name for name, row in ROWS.items() if row.size == "small"]
WRITTEN = ("sums", "norms", "directions")
VARIANTS = [name for name in SMALL if ROWS[name].kind in (*WRITTEN, "steps") or "kinds" in ROWS[name].kind]
"""Ways to write a few blocks, and a second network of a kind; a quarter of them are in the sample."""
QUICK = [name for name in SMALL if name not in VARIANTS] + VARIANTS[::4]
TRIED = ("none", "sqrt2", "lsuv", "skipinit", "zeroinit", "fixup", "nf_resnet", "dyt", "group_norm", "layer_scale")
"""What the ways to write blocks are converted by in `make test-slow`."""
LARGE = [name for name, row in ROWS.items() if row.size == "slow"]
QUICK_ZOO = ["timm test_byobnet"]
ZOO = [name for name, row in ROWS.items() if row.size == "zoo" and name not in QUICK_ZOO]
EACH = 3
"""Of the properties, that many are checked of a case of the sample; each row, scheme and property is met."""


def sample() -> dict[str, tuple[str, tuple[str, ...]]]:
    """For each quick row a scheme that takes it and some properties; schemes and properties take turns.

    The scheme is the one that had the fewest rows so far among those that are not refused, and of the properties
    those that the scheme had least often.
    """
    cheap, refused = [*property_names(slow=False)], listed()
    rows_of = dict.fromkeys(SCHEMES, 0)
    had = {(text, name): 0 for text in SCHEMES for name in cheap}
    chosen = {}
    for number, name in enumerate(QUICK):
        takes = [text for text in SCHEMES if name not in refused[text]]
        scheme = min(takes, key=lambda text: rows_of[text])
        rows_of[scheme] += 1
        turned = cheap[number % len(cheap) :] + cheap[: number % len(cheap)]
        properties = tuple(sorted(turned, key=lambda check: had[scheme, check])[:EACH])
        had |= {(scheme, check): had[scheme, check] + 1 for check in properties}
        chosen[name] = (scheme, properties)
    return chosen


def sampled_refusals() -> dict[str, list[str]]:
    """For each scheme that refuses quick rows, one of them; by row."""
    schemes: dict[str, list[str]] = {name: [] for name in QUICK}
    for number, (scheme, reasons) in enumerate(listed().items()):
        rows = [name for name in QUICK if name in reasons]
        if rows:
            schemes[rows[number % len(rows)]].append(scheme)
    return schemes


def whole() -> list[tuple[str, str]]:
    """Our networks by all schemes, others by those without arguments, variants by some."""
    plain = [text for text in SCHEMES if "(" not in text]
    schemes = {"ours": [*SCHEMES], **dict.fromkeys(WRITTEN, TRIED)}
    return [(name, text) for name in SMALL + LARGE for text in schemes.get(ROWS[name].kind, plain)]


def compiled() -> list[tuple[str, str]]:
    """Each row once, for what takes seconds; schemes take turns."""
    refused, pairs = listed(), []
    for number, name in enumerate(SMALL + LARGE):
        takes = [text for text in SCHEMES if "(" not in text and name not in refused[text]]
        pairs.append((name, takes[number % len(takes)]))
    return pairs
