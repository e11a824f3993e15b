"""Claims that are declared beside the published numbers: a sentence, and the comparison of measured numbers by draw.

A row of `claims` in the YAML file of an artefact is read by its facts. Of networks without batch norm and with it, it
has a `claim` and one comparison of terms:

- `above: [term, term]`, and perhaps `by`: see `larger`;
- `within: [term, low, high]`: see `within`;
- `every: {of: term, above: number}` or `at_least`: see `in_every`; further entries name numbers of the check by `min`
  or `max` over draws.

A term is a number, the words `COLUMN without` or `COLUMN NAME=LABEL with`, of the rows with that label averaged in
each draw, or `{ratio: [term, term]}`, `{decades: [term, term]}` (log₁₀ of
the ratio), `{mean: [term, …]}`. With `each`, lists of values by name, the row stands for one claim of each
combination, or for all rows of its own `claims`; names in braces are replaced. `scale: fewer` or `scale: reduction`
leaves the claim open in a set-up that these facts call smaller than the paper's.

Of named numbers, a mapping, it has a `claim` and `above: [name, name]`, `near: [name, expected, tolerance]` or
`within: [name, low, high]`; `below: [name, bound]`, and perhaps the names of further `numbers` of the check;
`at_most: [name, bound]`; `all_within: [name, low, high]` of a list; or `order: [name, number, name]`, from the
smallest. `of: beyond` says that the claim is beyond the artefact's own. `agree: name` states no claim: each of the
named agreements of our code with a formula is one. Facts in the mapping may have claims of their own: `in` names the
fact of a row, and `for_each` has rows about every fact, whose name replaces `{name}` in the claim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Protocol

import numpy as np
import pandas as pd

from normless_papers.claims.checks import Claim, at_scale, below, check as decide, in_every, larger, near, within

ClaimRow = Mapping[str, Any]
Value = float | pd.Series


class Facts(Protocol):
    """What an artefact measured, on which claims are declared."""

    def claimed(self, row: ClaimRow) -> list[Claim]:
        """Return the checks of a row."""


class Drawn(Protocol):
    """Numbers by draw, and what is smaller than the paper's set-up, as sentences."""

    @property
    def fewer(self) -> str:
        """Why sums have fewer terms than the paper's; may be empty."""

    @property
    def reduction(self) -> str:
        """How the set-up is smaller than the paper's; may be empty."""

    def series(self, column: str, label: str, *, batch_norm: bool) -> pd.Series:
        """Return a number of each draw."""


def declared(rows: Sequence[ClaimRow], facts: Facts | Mapping[str, Any]) -> list[Claim]:
    """Return the checks of declared claims on facts, or on named numbers."""
    return [check for row in rows for own in _each(row) for check in _checks(own, facts)]


def _checks(row: ClaimRow, facts: Facts | Mapping[str, Any]) -> Sequence[Claim]:
    if not isinstance(facts, Mapping):
        return facts.claimed(row)
    if "agree" in row:
        return [agreement.check() for agreement in facts[row["agree"]]]
    if "in" in row:
        return _checks({key: value for key, value in row.items() if key != "in"}, facts[row["in"]])
    if "for_each" in row:
        return [
            check
            for name, fact in facts.items()
            for own in row["for_each"]
            for check in _checks(own | {"claim": own["claim"].replace("{name}", name)}, fact)
        ]
    return [_of_numbers(row, facts)]


_OF_NUMBERS = ("above", "all_within", "at_most", "below", "near", "order", "within")


def _of_numbers(row: ClaimRow, facts: Mapping[str, Any]) -> Claim:
    claim: str = row["claim"]
    (kind,) = (key for key in row if key in _OF_NUMBERS)
    names, (measured, *bounds) = row[kind], [facts.get(str(term), term) for term in row[kind]]
    if kind == "near":
        check = near(claim, measured, *bounds)
    elif kind == "within":
        check = within(claim, measured, *bounds)
    elif kind == "above":
        check = larger(claim, measured, *bounds, by=row.get("by", 0.0))
    elif kind == "below":
        check = below(claim, measured, *bounds, **{name: facts[name] for name in row.get("numbers", ())})
    elif kind == "at_most":
        check = decide(claim, measured <= bounds[0], **{names[0]: measured})
    elif kind == "all_within":
        lowest, highest = min(measured), max(measured)
        holds = bounds[0] <= lowest <= highest <= bounds[1]
        check = decide(claim, holds, smallest=lowest, largest=highest, count=len(measured))
    else:
        check = decide(claim, measured < bounds[0] < bounds[1], **{names[0]: measured, names[2]: bounds[1]})
    return replace(check, of=row.get("of", "shape"))


def by_draw(row: ClaimRow, facts: Drawn) -> list[Claim]:
    """Return the check of a claim on numbers by draw."""
    check = _compared(row, facts)
    return [at_scale(check, getattr(facts, row["scale"]))] if "scale" in row else [check]


def _each(row: ClaimRow) -> Iterator[ClaimRow]:
    """Yield the row, or the rows in it, for every combination of the values that its names stand for."""
    names = row.get("each", {})
    for values in product(*names.values()):
        known = dict(zip(names, values, strict=True))
        yield from (_named(own, known) if known else own for own in row.get("claims", (row,)))


def _named(value: Any, names: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        return names[value[1:-1]] if value[1:-1] in names and value[:1] == "{" else value.format(**names)
    if isinstance(value, Mapping):
        return {key: item if key == "each" else _named(item, names) for key, item in value.items()}
    return [_named(item, names) for item in value] if isinstance(value, list) else value


def _compared(row: ClaimRow, facts: Drawn) -> Claim:
    claim: str = row["claim"]
    if "above" in row:
        first, second = (_value(term, facts) for term in row["above"])
        return larger(claim, first, second, by=row.get("by", 0.0))
    if "within" in row:
        term, low, high = row["within"]
        return within(claim, _value(term, facts), low, high)
    every = dict(row["every"])
    values = _value(every.pop("of"), facts)
    above, least = every.pop("above", None), every.pop("at_least", None)
    flags = values >= least if above is None else values > above
    return in_every(claim, flags, **{name: getattr(values, of)() for name, of in every.items()})


def _value(term: Any, facts: Drawn) -> Value:
    if isinstance(term, str):
        *words, kind = term.split()
        return facts.series(words[0], " ".join(words[1:]), batch_norm=kind == "with")
    if not isinstance(term, Mapping):
        return float(term)
    ((operation, terms),) = term.items()
    values = [_value(part, facts) for part in terms]
    if operation == "mean":
        return sum(values) / len(values)
    ratio = values[0] / values[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        decades: Any = np.log10(ratio)
    return ratio if operation == "ratio" else decades
