"""One colour and one marker per scheme, the same in every figure, on light and on dark paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from normless.spec import parse_call, split_terms


@dataclass(frozen=True)
class Ink:
    """A colour as it is on light and on dark paper, and the marker that says the same without colour."""

    light: str
    dark: str
    marker: str = "o"


# Light colours after Okabe and Ito, "Color Universal Design" (2008), darkened where they carry text.
SCHEME_INKS: Mapping[str, Ink] = {
    "none": Ink("#c8500a", "#ff9a5c", "X"),
    "sqrt2": Ink("#a8558a", "#e39ccb", "v"),
    "skipinit": Ink("#0068a8", "#63b8f2", "o"),
    "fixup": Ink("#00805d", "#3fcf9f", "s"),
    "batch_norm": Ink("#59636e", "#b4bec9", "D"),
    "zeroinit": Ink("#3f8fc4", "#8fd0f7", "P"),
    "rezero": Ink("#8a6d00", "#e6c84a", "^"),
    "zero_gamma": Ink("#7b5a3c", "#d3ad8a", "p"),
    "lsuv": Ink("#5b4fb0", "#aaa0f5", "h"),
    "xavier": Ink("#9a3b3b", "#f08f8f", "<"),
    "layer_scale": Ink("#2f7f86", "#76cdd5", ">"),
    "group_norm": Ink("#6f7a2a", "#c3d066", "d"),
}
OTHER_SCHEME = Ink("#3d4652", "#d5dbe2", "*")

# Of γ by role: distinct in colour, in grey and by marker.
ROLE_INKS: Mapping[str, Ink] = {
    "γ stem": SCHEME_INKS["fixup"],
    "γ last": SCHEME_INKS["skipinit"],
    "γ down": SCHEME_INKS["none"],
    "γ other": SCHEME_INKS["batch_norm"],
}

# Of lines that stand for no scheme: numbers of factors, options, networks.
_SERIES = ("skipinit", "none", "fixup", "sqrt2", "rezero", "lsuv", "zero_gamma", "batch_norm")

# Of the verdict on a claim; the marker is a character here. Text on the paper, 4.5 : 1 or better in both.
VERDICT_INKS: Mapping[str, Ink] = {
    "holds": Ink("#00694c", "#45d3a3", "✓"),
    "fails": Ink("#b3261e", "#ff9189", "✗"),
    "inconclusive": Ink("#7a5900", "#e9c546", "?"),
    "error": Ink("#6b3fa0", "#c9a6f5", "!"),
}

# Text, quiet text, grid lines, and the paper.
TEXT = Ink("#1b222b", "#e9edf2")
QUIET = Ink("#5a6673", "#a3aebb")
GRID = Ink("#e1e5ea", "#323b46")
PAPER = Ink("#ffffff", "#14181d")


def scheme_ink(scheme: str) -> Ink:
    """The colour and marker of a scheme; its arguments, as in ``skipinit(alpha=1)``, do not change them."""
    name, _ = parse_call(split_terms(scheme)[0])
    return SCHEME_INKS.get(name, OTHER_SCHEME)


def series_ink(index: int) -> Ink:
    """The colour and marker of line 0, 1, … of a figure; they repeat after eight."""
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
    """Colours from quiet to bright for names in an order, such as the points of an update."""
    start, end = (bytes.fromhex(ink.light.removeprefix("#")) for ink in (QUIET, SCHEME_INKS["none"]))
    shaded = {}
    for index, name in enumerate(names):
        part = index / max(len(names) - 1, 1)
        mixed = bytes(round(a + part * (b - a)) for a, b in zip(start, end, strict=True))
        shaded[name] = Ink(f"#{mixed.hex()}", QUIET.dark)
    return shaded


def css_variables() -> dict[str, Ink]:
    """Every colour that a figure may use, by the name of the style-sheet variable that carries it."""
    named = {"text": TEXT, "quiet": QUIET, "grid": GRID, "paper": PAPER, "scheme-other": OTHER_SCHEME}
    return named | {f"scheme-{name.replace('_', '-')}": ink for name, ink in SCHEME_INKS.items()}
