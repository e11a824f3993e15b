"""The learning rates of a sweep, and their extension if the best rate lies at an end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from typing import Annotated, Any, Self

from pydantic import Field

from normless_lab.train.settings import check_fields

LARGEST_POWER = 1000
"""Powers of two up to about this one have a floating-point number."""
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class RateGrid:
    """Learning rates in increasing order.

    Args:
        rates: rates for every combination of a sweep; a single rate is never extended.
        factor: ratio of an added rate to the end of the grid; if None, rates are not added.
        extensions: largest number of rates added at each end.

    Raises:
        ValueError: a value is out of its range, or the rates are not increasing.
    """

    rates: Annotated[tuple[Rate, ...], Field(min_length=1)]
    factor: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = 2.0
    extensions: Annotated[int, Field(ge=0, strict=True)] = 3

    def __post_init__(self) -> None:
        check_fields(self, ValueError)
        if any(low >= high for low, high in pairwise(self.rates)):
            raise ValueError(f"Expected learning rates in increasing order, got {list(self.rates)}.")

    @classmethod
    def powers(cls, lowest: int, highest: int, *, base: float = 2.0, extensions: int = 3) -> Self:
        """Return base^lowest, …, base^highest, extended by the base; De & Smith use powers of two.

        Raise a ValueError for exponents that are not whole or not in order, and for a base of 1 or less.
        """
        if not isinstance(lowest, int) or not isinstance(highest, int) or highest < lowest:
            raise ValueError(
                f"Expected whole exponents from the lowest to the highest, got {lowest!r} to {highest!r}."
            )
        if max(abs(lowest), abs(highest)) * log2(base) > LARGEST_POWER:
            raise ValueError(
                f"Expected learning rates from 2^-{LARGEST_POWER} to 2^{LARGEST_POWER}, got exponents "
                f"from {lowest} to {highest} of {base:g}."
            )
        return cls(tuple(base**exponent for exponent in range(lowest, highest + 1)), base, extensions)

    def fixed(self) -> Self:
        """Return the same rates without extensions."""
        return type(self)(self.rates, None, self.extensions)

    def beyond(self, tried: Collection[float], edges: Collection[str]) -> tuple[float, ...]:
        """Return the rates to try next: one beyond each end of the tried rates at which an optimum lies.

        At most `extensions` rates are added at each end. `edges` are the positions of the optima, see `optima`:
        "lowest", "highest", or "" for neither.
        """
        if self.factor is None or len(self.rates) < 2:
            return ()
        further = []
        low, high = min(self.rates), max(self.rates)
        if "lowest" in edges and sum(rate < low for rate in tried) < self.extensions:
            further.append(min(low, *tried) / self.factor)
        if "highest" in edges and sum(rate > high for rate in tried) < self.extensions:
            further.append(max(high, *tried) * self.factor)
        return tuple(further)

    def to_dict(self) -> dict[str, Any]:
        """Return the grid as in the file of a sweep."""
        return {"rates": list(self.rates), "factor": self.factor, "extensions": self.extensions}

    @classmethod
    def from_value(cls, value: Any) -> Any:
        """Return the grid described in the file of a sweep.

        The description is a list of rates; `{from: -6, to: 0}`, exponents of two; or `{rates: [0.1, 0.2]}`. The last
        two may have `factor` and `extensions`. Other values raise a ValueError.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, (list, tuple)):
            return cls(tuple(value))
        values = dict(value) if isinstance(value, Mapping) else {}
        if set(values) - {"factor", "extensions"} not in ({"from", "to"}, {"rates"}):
            raise ValueError(
                "Expected a list of learning rates, exponents of two as {from: -6, to: 0}, or {rates: [0.1, 0.2]}, "
                f"the last two with factor and extensions if need be; got {value!r}."
            )
        if "rates" not in values:
            values["rates"] = cls.powers(values.pop("from"), values.pop("to")).rates
        return cls(**values)
