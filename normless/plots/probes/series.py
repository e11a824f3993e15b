"""Colours for lines that stand for no scheme: numbers of factors, options, networks."""

from __future__ import annotations

from normless.plots.palette import SCHEME_INKS, Ink

_ORDER = ("skipinit", "none", "fixup", "sqrt2", "rezero", "lsuv", "zero_gamma", "batch_norm")


def series_ink(index: int) -> Ink:
    """The colour and marker of the line number 0, 1, … of a figure; they repeat after eight."""
    return SCHEME_INKS[_ORDER[index % len(_ORDER)]]


def power_of_ten(exponent: float) -> str:
    """A tick label 10ᵏ for its exponent."""
    digits = f"{exponent:g}".translate(str.maketrans("0123456789-.", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·"))
    return f"10{digits}"
