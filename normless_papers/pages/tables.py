"""Numbers, comparisons and tables of results as text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from normless_lab.plots import Column, Table
from normless_papers.claims.checks import Claim, Verdict
from normless_papers.results.reproduction import TABLE, Reproduction, plain

# The number of rows shown; the file has all.
MOST_ROWS = 40
NOTHING = "–"
# The columns of the distance of a set-up from the paper's; see `normless_papers.distance`.
ASPECTS = ("data", "network", "length", "seeds")
_PUBLISHED, _MEASURED = "_published", "_measured"


def text_of(value: Any, *, as_printed: bool = False) -> str:
    """Return a cell or setting as text: numbers to four digits or as printed, a dash for a missing value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.10g}" if as_printed else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {text_of(item, as_printed=as_printed)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(text_of(item, as_printed=as_printed) for item in value)
    return str(value)


def fact_texts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return settings as (name, value) in words, without those that are None or an empty table."""
    named = {name: value for name, value in values.items() if value is not None and value != {}}
    return [(spoken(name), text_of(value, as_printed=True)) for name, value in named.items()]


def spoken(name: str) -> str:
    """Return the name of a column or setting as words."""
    return name.replace("_", " ")


def table_of(result: Reproduction, most: int = MOST_ROWS) -> tuple[Table | None, str]:
    """Return published beside measured numbers, and a sentence on omitted rows, empty if there are none.

    The two columns of a quantity are neighbours; columns without values are omitted.
    """
    whole = result.beside.dropna(axis="columns", how="all")
    if whole.empty:
        return None, ""
    headings = _headings(list(map(str, whole.columns)))
    columns = [Column(heading, numeric=_is_numeric(whole[name])) for name, heading in headings.items()]
    shown, cells = whole[list(headings)].head(most), []
    for name in headings:
        as_printed = name.endswith(_PUBLISHED) or name in result.on
        texts = [text_of(_scalar(value), as_printed=as_printed) for value in shown[name]]
        # Names of single quantities are words, as those of columns.
        cells.append([spoken(text) for text in texts] if name == "quantity" else texts)
    caption = "Published beside measured" if result.published.rows and result.on else "Measured"
    left = len(whole) - len(shown)
    omitted = f"{left} more rows are in {TABLE} of artefacts/{result.id}/{result.budget}." if left else ""
    return Table(
        caption, columns, list(map(list, zip(*cells, strict=True))), row_headers=max(len(result.on), 1)
    ), omitted


def _headings(names: list[str]) -> dict[str, str]:
    """Return the headings by column, each measured column after the published column of the same quantity."""
    headings: dict[str, str] = {}
    for name in names:
        quantity = name.removesuffix(_PUBLISHED)
        if name != quantity and f"{quantity}{_MEASURED}" in names:
            headings[name] = f"{spoken(quantity)}, published"
            headings[f"{quantity}{_MEASURED}"] = f"{spoken(quantity)}, measured"
        headings.setdefault(name, spoken(name))
    return headings


def is_published(heading: str) -> bool:
    """Return whether a heading of `table_of` is that of the published numbers of a measured quantity."""
    return heading.endswith(", published")


def _scalar(value: Any) -> Any:
    """Return a cell as a number, text or list of Python; None if it is missing."""
    return float(value) if isinstance(value, float) and not math.isnan(value) else plain(value)


def _is_numeric(column: pd.Series[Any]) -> bool:
    cells = [cell for cell in map(_scalar, column) if cell is not None]
    return bool(cells) and all(isinstance(cell, (int, float)) and not isinstance(cell, bool) for cell in cells)


def heading_of(names: Sequence[str], right: Sequence[str] = ()) -> list[str]:
    """Return the heading of a table in Markdown; columns named in `right` are right-aligned."""
    return [row_of(names), row_of(["---:" if name in right else "---" for name in names])]


def as_text(text: str) -> str:
    """Return a text of a result, which is data, for Markdown: in one line, without HTML, links and images."""
    return re.sub(r"\](?=[(\[:])", r"]\\", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(text.split())))


def row_of(cells: Sequence[str]) -> str:
    """Return a row of a table in Markdown, in which a bar would end a cell."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


Numbers = Mapping[str, float]

# Verdicts in the order in which they decide.
_ORDER: tuple[Verdict, ...] = ("fails", "inconclusive", "holds")
# Numbers of the interval, which the comparison states.
_INTERVAL = ("half_width", "standard_error")
_TRAINS = (
    "accuracy {{accuracy:.1f}} %{{interval}} vs control {{control:.1f}} %, needs {} % (half of the control's gain)"
)
# Kinds of checks of two sides, which are their first numbers.
_OF_TWO = ("needed_difference", "needed_factor", "margin")
# By the names of the numbers that a kind of check has.
_WORDS: Mapping[tuple[str, ...], str] = MappingProxyType(
    {
        ("needed_difference",): "{sides}, needs {first} > {second}{more}{gap}",
        ("needed_factor",): "{sides}, needs {first} {times}{second}",
        ("margin",): "{sides}, needs a difference below {margin:.3g}{gap}",
        ("accuracy", "control", "chance", "needed"): _TRAINS.format("> {needed:.1f}"),
        ("accuracy", "control", "chance", "needed_below"): _TRAINS.format("< {needed_below:.1f}"),
        ("measured", "low", "high"): "measured {measured}{interval}, needs {low:.3g} to {high:.3g}",
        ("measured", "expected", "tolerance"): (
            "measured {measured} vs expected {expected}, needs a difference of at most {tolerance:.3g}"
        ),
        ("largest", "bound"): "largest {largest:.3g} vs bound {bound:.3g}, needs largest < bound",
        ("deviation", "tolerance"): (
            "deviation {deviation:.3g} vs tolerance {tolerance:.3g}, needs deviation ≤ tolerance"
        ),
        ("factor", "largest_factor"): "factor {factor}, needs at most {largest_factor:.3g}",
        ("share_of_draws", "draws"): "in {percent:.0f} % of {draws:.0f} draws, needs all",
    }
)


class _Number(float):
    """A number to four digits, or unknown."""

    def __format__(self, spec: str) -> str:
        return "unknown" if math.isnan(self) else super().__format__(spec or ".4g")


def compared(check: Claim) -> str:
    """Return both sides, the bound, and the difference with its 95 % interval; empty if nothing is compared."""
    names = _kind(check)
    if not names:
        return ""
    numbers = check.numbers
    words = _two_sides(numbers) if names[0] in _OF_TWO else {}
    words |= {"interval": _interval(numbers)}
    percent = _Number(100 * numbers.get("share_of_draws", math.nan))
    return _WORDS[names].format(**{name: _Number(value) for name, value in numbers.items()} | words, percent=percent)


def effect_of(check: Claim) -> str:
    """Return the comparison, or all numbers of a check without one."""
    return compared(check) or ", ".join(f"{spoken(name)} {value:.3g}" for name, value in check.numbers.items())


def counted(demonstrations_by_verdict: Mapping[str, Sequence[bool]]) -> str:
    """Return the number of results of each verdict; of the reproduced also how many are demonstrations."""
    texts = []
    for verdict, demonstrations in demonstrations_by_verdict.items():
        among = (
            f" ({sum(demonstrations)} in demonstrations)" if verdict == "reproduced" and any(demonstrations) else ""
        )
        texts.append(f"{len(demonstrations)} {verdict}{among}")
    return ", ".join(texts)


def deciding_of(checks: Sequence[Claim]) -> Claim | None:
    """Return the first check that fails, else the first that is undecided, else the first; None without checks."""
    return min(checks, key=lambda check: _ORDER.index(check.verdict), default=None)


def found_by(checks: Sequence[Claim]) -> str:
    """Return how many checks hold, and the claim of the one that decides unless all do."""
    deciding, holding = deciding_of(checks), sum(check.verdict == "holds" for check in checks)
    found = f"{holding} of {len(checks)} checks hold."
    if deciding is None or deciding.verdict == "holds":
        return found
    undecided = "Not asked here" if " Not asked" in deciding.claim else "Undecided"
    return f"{found} {'Fails' if deciding.verdict == 'fails' else undecided}: {plain_claim(deciding)}"


def plain_claim(check: Claim) -> str:
    """Return a check's claim without the remark on the set-up."""
    return check.claim.partition(" Smaller than ")[0].partition(" Not asked")[0]


def left_of(check: Claim) -> dict[str, float]:
    """Return the numbers of a check that `compared` does not state."""
    names = _kind(check)
    stated = {*names, *_INTERVAL} if names else set()
    if names and names[0] in _OF_TWO:
        stated |= set(list(check.numbers)[:2])
    return {name: value for name, value in check.numbers.items() if name not in stated}


def _kind(check: Claim) -> tuple[str, ...]:
    return next((names for names in _WORDS if check.numbers.keys() >= {*names}), ())


def _interval(numbers: Numbers) -> str:
    # A stored row of docs/reproduction/runs.parquet has the standard error alone.
    half, error = (numbers.get(name, math.nan) for name in _INTERVAL)
    return f" ± {half:.2g}" if not math.isnan(half) else f", standard error {error:.2g}" if error > 0 else ""


def _label(name: str) -> str:
    """Return a side's name as words: `fixup, rate 0.1` as `fixup (rate 0.1)`; `gamma 1, gamma 2` stays a list."""
    first, _, rest = spoken(name).partition(", ")
    return f"{first} ({rest})" if rest and first.split()[0] != rest.split()[0] else spoken(name)


def _two_sides(numbers: Numbers) -> dict[str, str]:
    """Return the words for the two sides of a comparison, whose numbers come first."""
    (first, left), (second, right), *_ = numbers.items()
    colon = ":" if "," in first + second else ""
    by, factor = numbers.get("needed_difference", 0.0), numbers.get("needed_factor", 1.0)
    return {
        "first": _label(first),
        "second": _label(second),
        "sides": f"{_label(first)}{colon} {_Number(left)} vs {_label(second)}{colon} {_Number(right)}",
        "more": f" {'+' if by > 0 else '−'} {abs(by):.3g}" if by else "",
        "gap": "" if math.isnan(left - right) else f": {left - right:+.3g}{_interval(numbers)}",
        "times": f"≥ {factor:.3g} · " if factor > 1 else "> ",
    }
