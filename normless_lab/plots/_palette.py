"""One colour and one marker per scheme, the same in every figure, on light and on dark paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from normless.spec import parse_call, split_terms


@dataclass(frozen=True)
class Ink:
    """A colour on light and on dark paper, and the marker that replaces it without colour."""

    light: str
    dark: str
    marker: str = "o"


_INKS = {
    group: {name: Ink(*values) for name, values in inks.items()}
    for group, inks in yaml.safe_load(Path(__file__).with_name("palette.yaml").read_text("utf-8")).items()
}
SCHEME_INKS: Mapping[str, Ink] = _INKS["schemes"]
VERDICT_INKS: Mapping[str, Ink] = _INKS["verdicts"]
TEXT, QUIET, GRID, PAPER, OTHER_SCHEME = _INKS["page"].values()

# Of γ by role: distinct in colour, in grey and by marker.
ROLE_INKS: Mapping[str, Ink] = {
    "γ stem": SCHEME_INKS["fixup"],
    "γ last": SCHEME_INKS["skipinit"],
    "γ down": SCHEME_INKS["none"],
    "γ other": SCHEME_INKS["batch_norm"],
}

# Colours of lines without a scheme: numbers of factors, options, networks.
_SERIES = ("skipinit", "none", "fixup", "sqrt2", "rezero", "lsuv", "zero_gamma", "batch_norm")


def scheme_ink(scheme: str) -> Ink:
    """Return the colour and marker of a scheme, which do not depend on arguments as in ``skipinit(alpha=1)``."""
    name, _ = parse_call(split_terms(scheme)[0])
    return SCHEME_INKS.get(name, OTHER_SCHEME)


def series_ink(index: int) -> Ink:
    """Return the colour and marker of line 0, 1, … of a figure; they repeat after eight."""
    return SCHEME_INKS[_SERIES[index % len(_SERIES)]]


def inks_of(schemes: Mapping[str, str]) -> dict[str, Ink]:
    """A colour and marker for each name, all different as far as there are enough: its scheme's if it is the first.

    Args:
        schemes: the text of the scheme that each name stands for; any other text gets a colour that is left.
    """
    chosen: dict[str, Ink] = {}
    for name, scheme in schemes.items():
        ink = SCHEME_INKS.get(scheme.partition("(")[0])
        if ink is not None and ink not in chosen.values():
            chosen[name] = ink
    left = [ink for ink in map(series_ink, range(len(_SERIES))) if ink not in chosen.values()]
    left += [ink for ink in SCHEME_INKS.values() if ink not in chosen.values() and ink not in left]
    rest = [name for name in schemes if name not in chosen]
    return chosen | {name: left[place % len(left)] for place, name in enumerate(rest)}


def shades(names: Sequence[str]) -> dict[str, Ink]:
    """Return colours from pale to bright for ordered names, such as the points of an update."""
    start, end = (bytes.fromhex(ink.light.removeprefix("#")) for ink in (QUIET, SCHEME_INKS["none"]))
    shaded = {}
    for index, name in enumerate(names):
        part = index / max(len(names) - 1, 1)
        mixed = bytes(round(a + part * (b - a)) for a, b in zip(start, end, strict=True))
        shaded[name] = Ink(f"#{mixed.hex()}", QUIET.dark)
    return shaded


def css_variables() -> dict[str, Ink]:
    """Return every colour of figures by the name of its style-sheet variable."""
    return _INKS["page"] | {f"scheme-{name.replace('_', '-')}": ink for name, ink in SCHEME_INKS.items()}
