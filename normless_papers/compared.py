"""What a check compares, in words: `A 33.5 vs B 95, needs A > B`, by the numbers of the check alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from normless_papers.claims import Check
from normless_papers.formatting import spoken

Numbers = Mapping[str, float]

# What an interval adds to a comparison, and is said with it.
_ERRORS = ("half_width", "standard_error")


def compared(one: Check) -> str:
    """Both sides, what is needed, and their difference with its 95 % interval; empty if nothing is compared."""
    return next((say(one.numbers) for names, say in _WAYS.items() if names <= one.numbers.keys()), "")


def effect_of(one: Check) -> str:
    """What is compared, or else all numbers of a check."""
    return compared(one) or ", ".join(f"{spoken(name)} {value:.3g}" for name, value in one.numbers.items())


def left_of(one: Check) -> dict[str, float]:
    """The numbers of a check that `compared` does not say."""
    if not compared(one):
        return dict(one.numbers)
    said = {*next(names for names in _WAYS if names <= one.numbers.keys()), *_ERRORS}
    if "needed_difference" in said or "needed_factor" in said:
        said |= set(_sides(one.numbers))
    return {name: value for name, value in one.numbers.items() if name not in said}


def _sides(numbers: Numbers) -> list[str]:
    """The names of the two sides of a comparison, which come first."""
    return list(numbers)[:2]


def _interval(numbers: Numbers) -> str:
    # Results of an earlier version have no half width.
    half, error = (numbers.get(name, math.nan) for name in _ERRORS)
    return f" ± {half:.2g}" if not math.isnan(half) else f", standard error {error:.2g}" if error > 0 else ""


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.4g}"


def _label(name: str) -> str:
    """The name of a side as words: `fixup, rate 0.1` as `fixup (rate 0.1)`; a list, `gamma 1, gamma 2`, stays one."""
    first, _, rest = spoken(name).partition(", ")
    return f"{first} ({rest})" if rest and first.split()[0] != rest.split()[0] else spoken(name)


def _two(numbers: Numbers, needs: str) -> str:
    """Both sides by name, and what is needed of them, in which {0} and {1} stand for their names."""
    names = _sides(numbers)
    words = [_label(name) for name in names]
    colon = ":" if any("," in name for name in names) else ""
    sides = [f"{word}{colon} {_number(numbers[name])}" for word, name in zip(words, names, strict=True)]
    return f"{sides[0]} vs {sides[1]}, needs {needs.format(*words)}"


def _larger(numbers: Numbers) -> str:
    by = numbers["needed_difference"]
    more = f" {'+' if by > 0 else '−'} {abs(by):.3g}" if by else ""
    first, second = (numbers[name] for name in _sides(numbers))
    gap = "" if math.isnan(first - second) else f": {first - second:+.3g}{_interval(numbers)}"
    return _two(numbers, f"{{0}} > {{1}}{more}") + gap


def _times(numbers: Numbers) -> str:
    factor = numbers["needed_factor"]
    return _two(numbers, f"{{0}} ≥ {factor:.3g} · {{1}}" if factor > 1 else "{0} > {1}")


def _trains(numbers: Numbers, sign: str, bound: str) -> str:
    accuracy, control = numbers["accuracy"], numbers["control"]
    needs = f"needs {sign} {numbers[bound]:.1f} % (half of the control's gain)"
    return f"accuracy {accuracy:.1f} %{_interval(numbers)} vs control {control:.1f} %, {needs}"


_WAYS: Mapping[frozenset[str], Callable[[Numbers], str]] = MappingProxyType(
    {
        frozenset({"needed_difference"}): _larger,
        frozenset({"needed_factor"}): _times,
        frozenset({"accuracy", "control", "chance", "needed"}): lambda all_: _trains(all_, ">", "needed"),
        frozenset({"accuracy", "control", "chance", "needed_below"}): lambda all_: _trains(all_, "<", "needed_below"),
        frozenset({"measured", "low", "high"}): lambda all_: (
            f"measured {_number(all_['measured'])}{_interval(all_)}, needs {all_['low']:.3g} to {all_['high']:.3g}"
        ),
        frozenset({"measured", "expected", "tolerance"}): lambda all_: (
            f"measured {all_['measured']:.4g} vs expected {all_['expected']:.4g}, "
            f"needs a difference of at most {all_['tolerance']:.3g}"
        ),
        frozenset({"largest", "bound"}): lambda all_: (
            f"largest {all_['largest']:.3g} vs bound {all_['bound']:.3g}, needs largest < bound"
        ),
        frozenset({"deviation", "tolerance"}): lambda all_: (
            f"deviation {all_['deviation']:.3g} vs tolerance {all_['tolerance']:.3g}, needs deviation ≤ tolerance"
        ),
        frozenset({"gap", "deviation"}): lambda all_: (
            f"gap {_number(all_['gap'])} vs deviation {_number(all_['deviation'])}, needs gap ≤ deviation"
        ),
        frozenset({"factor", "largest_factor"}): lambda all_: (
            f"factor {_number(all_['factor'])}, needs at most {all_['largest_factor']:.3g}"
        ),
        frozenset({"share_of_draws", "draws"}): lambda all_: (
            f"in {100 * all_['share_of_draws']:.0f} % of {all_['draws']:.0f} draws, needs all"
        ),
    }
)
