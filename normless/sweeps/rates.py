"""The learning rates that a sweep tries, and how they reach further where the best of them lies at an end."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self


@dataclass(frozen=True)
class RateGrid:
    """Learning rates in increasing order.

    Args:
        rates: what every combination of a sweep is tried at first; a single one is no grid and has no ends.
        factor: an end that turns out best is followed by a rate so many times larger or smaller; never if None.
        extensions: at most so many rates are added at each end.

    Raises:
        ValueError: the rates are none, not above 0, or not increasing, the factor is not above 1, or the extensions
            are negative.
    """

    rates: tuple[float, ...]
    factor: float | None = 2.0
    extensions: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(float(rate) for rate in self.rates))
        if not self.rates or any(not 0 < rate < math.inf for rate in self.rates):
            raise ValueError(f"Expected one or more learning rates above 0, got {list(self.rates)}.")
        if any(low >= high for low, high in pairwise(self.rates)):
            raise ValueError(f"Expected learning rates in increasing order, got {list(self.rates)}.")
        if self.factor is not None and not 1 < self.factor < math.inf:
            raise ValueError(f"Expected a factor above 1 between learning rates, or none, got {self.factor}.")
        if self.extensions < 0:
            raise ValueError(f"Expected 0 or more extensions of the learning rates, got {self.extensions}.")

    @classmethod
    def powers(cls, lowest: int, highest: int, *, base: float = 2.0, extensions: int = 3) -> Self:
        """base^lowest, …, base^highest, extended by the base; of two, as in De & Smith's sweeps.

        Raises:
            ValueError: the highest exponent is below the lowest, or the base is not above 1.
        """
        if highest < lowest:
            raise ValueError(f"Expected exponents from the lowest to the highest, got from {lowest} to {highest}.")
        return cls(tuple(base**exponent for exponent in range(lowest, highest + 1)), base, extensions)

    def fixed(self) -> Self:
        """The same rates, never extended."""
        return type(self)(self.rates, None, self.extensions)

    def beyond(self, tried: Collection[float], edges: Collection[str]) -> tuple[float, ...]:
        """The rates to try next.

        A rate is added at an end of those tried if the optimum lies there, and fewer than `extensions` were added
        at that end before.

        Args:
            tried: the rates tried so far, those of the grid and what was added.
            edges: where the optimum lies, as `optima` says it: "lowest", "highest", or "" for neither.
        """
        if self.factor is None or len(self.rates) < 2:
            return ()
        found = []
        low, high = min(self.rates), max(self.rates)
        if "lowest" in edges and sum(rate < low for rate in tried) < self.extensions:
            found.append(min(low, *tried) / self.factor)
        if "highest" in edges and sum(rate > high for rate in tried) < self.extensions:
            found.append(max(high, *tried) * self.factor)
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """As a file of a sweep has it."""
        return {"rates": list(self.rates), "factor": self.factor, "extensions": self.extensions}

    @classmethod
    def from_value(cls, value: Any) -> Self:
        """The grid that a file of a sweep describes.

        Args:
            value: a list of rates; `{from: -6, to: 0}`, exponents of two; or what `to_dict` gives. The last two take
                `factor` and `extensions` too.

        Raises:
            ValueError: it is none of these.
        """
        if isinstance(value, Mapping):
            return cls._from_mapping(dict(value))
        if isinstance(value, (list, tuple)) and all(_is_number(one) for one in value):
            return cls(tuple(value))
        raise ValueError(
            f"Expected a list of learning rates, or exponents of two as in {{from: -6, to: 0}}, got {value!r}."
        )

    @classmethod
    def _from_mapping(cls, values: dict[str, Any]) -> Self:
        exponents = {"from", "to"} & set(values)
        known = {"from", "to", "factor", "extensions"} if exponents else {"rates", "factor", "extensions"}
        wrong = sorted(
            str(name) for name in set(values) ^ known if name in ("from", "to", "rates") or name not in known
        )
        if wrong:
            raise ValueError(
                "Expected learning rates as {from: -6, to: 0} or {rates: [0.1, 0.2]}, each with factor and "
                f"extensions if need be; got {values}."
            )
        if exponents:
            low, high = values.pop("from"), values.pop("to")
            if not isinstance(low, int) or not isinstance(high, int):
                raise ValueError(f"Expected whole exponents of two, got from {low!r} to {high!r}.")
            values["rates"] = cls.powers(low, high).rates
        return cls(**{**values, "rates": tuple(values["rates"])})


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
