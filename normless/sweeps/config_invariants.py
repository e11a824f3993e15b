"""How the variance on the skip path grows with the block d in an endlessly wide network without borders.

Without normalization every branch carries the variance of its skip path, so each sum doubles it; behind a norm
every branch carries variance 1, so each sum adds 1; a branch that starts at zero adds nothing, and 1/√2 on the
sum of two equal variances keeps them (De & Smith 2020, section 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import pandas as pd


@dataclass(frozen=True)
class Law:
    """The law in words, and as the variance at block d = 1, 2, … of a network that starts with ``first``."""

    text: str
    variance: Callable[[float, pd.Series], pd.Series]


def _doubling(first: float, block: pd.Series) -> pd.Series:
    return first * 2.0 ** (block - 1)


def _adding(first: float, block: pd.Series) -> pd.Series:
    return first + block - 1


def _keeping(first: float, block: pd.Series) -> pd.Series:
    return first + 0.0 * block


LAWS = MappingProxyType(
    {
        "none": Law("∼ 2ᵈ", _doubling),
        "batch_norm": Law("∼ d", _adding),
        "sqrt2": Law("∼ 1", _keeping),
        "skipinit": Law("∼ 1", _keeping),
        "fixup": Law("∼ 1", _keeping),
    }
)


def law_skip_variance(scheme: str, signal: pd.DataFrame) -> pd.Series:
    """The law from the measured variance of the first block on; NaN for a scheme that has no law here.

    Args:
        scheme: its name.
        signal: the rows of one network, with ``block`` (1..L) and ``skip_variance``.
    """
    block = signal["block"].astype(float)
    if scheme not in LAWS:
        return pd.Series(float("nan"), index=signal.index)
    return LAWS[scheme].variance(float(signal["skip_variance"].iloc[0]), block)
