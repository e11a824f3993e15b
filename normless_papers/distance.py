"""The distance of a set-up from the paper's: how its data, network, length and seeds differ, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any

from normless_papers.budgets import Budget

# The settings of artefacts' functions by what they decide; all others decide the length of the training.
_DATA = ("data", "crop", "side", "shown", "vocabulary", "cutout")
_NETWORK = (
    *("model", "models", "channels", "depth", "depths", "deep", "deep_width", "width", "layers", "blocks"),
    *("conv_blocks", "classifiers", "features", "size", "trained", "written_out", "ghost"),
)
_SEEDS = (
    *("replicates", "best", "draws", "batches", "runs", "tables", "points", "rounds"),
    *("images", "examples", "minibatches"),
)
_ASPECTS = MappingProxyType(
    {name: aspect for aspect, names in (("data", _DATA), ("network", _NETWORK), ("seeds", _SEEDS)) for name in names}
)
# Settings that describe an effort and decide nothing, with all below them.
_DESCRIPTIONS = frozenset({"reduced", "plateau", "folder", "run", "extensions", "further"})
_NAMED = ("data", "model", "models", "shown")
_MOST, _SHORT = 3, 3
# An argument that every network of the papers has, whose weights the scheme draws.
_UNSET = ", initialization=None"


@dataclass(frozen=True)
class Distance:
    """How a set-up differs from the paper's, in words; empty where it does not.

    Attributes:
        of_same_kind: whether all data and networks are the paper's, though it may have more; images that were
            compressed again are of the same kind.
        known: whether the paper's own set-up is among the artefact's budgets.
    """

    data: str = ""
    network: str = ""
    length: str = ""
    seeds: str = ""
    of_same_kind: bool = True
    known: bool = True

    @property
    def columns(self) -> tuple[str, str, str, str]:
        """Data, network, length and seeds in words; `the paper's` where they do not differ."""
        unknown = "the paper's" if self.known else "unknown"
        return tuple(text or unknown for text in (self.data, self.network, self.length, self.seeds))  # type: ignore[return-value]


def distance_of(
    settings: Mapping[Budget, Mapping[str, Any]], budget: Budget, data: str | None = None, origin: str = ""
) -> Distance:
    """Compare the settings of an artefact's function at a budget with those at the paper's own.

    Args:
        data: the user's data set in place of the budget's.
        origin: the provenance of the data set.
    """
    if "paper" not in settings:
        return Distance(of_same_kind=False, known=False)
    ours, theirs = (_values(settings[name]) for name in (budget, "paper"))
    if data is not None:
        ours |= {path: [data] for path in ours if path[-1] == "data"}
    texts: dict[str, dict[str, None]] = {name: {} for name in ("data", "network", "length", "seeds")}
    of_same_kind = True
    for path in dict.fromkeys([*ours, *theirs]):
        name, aspect = path[-1], _ASPECTS.get(path[-1], "length")
        if not _DESCRIPTIONS.isdisjoint(path):
            continue
        own, printed = ours.get(path, []), theirs.get(path, [])
        texts[aspect][_difference(name, own, printed)] = None
        if aspect in ("data", "network") and not _elements(own) <= _elements(printed):
            of_same_kind = False
    said = {name: _listed(list(found)) for name, found in texts.items()}
    if "JPEG" in origin and not said["data"]:
        said["data"] = "CIFAR-10 recompressed as JPEG"
    return Distance(said["data"], said["network"], said["length"], said["seeds"], of_same_kind)


def _elements(values: list[Any]) -> set[str]:
    """Return single values, and the elements of lists, as text."""
    return {str(item) for value in values for item in (value if isinstance(value, tuple) else (value,))}


def _values(settings: Mapping[str, Any]) -> dict[tuple[str, ...], list[Any]]:
    """Return the values of nested settings by their paths, those of several efforts together.

    Data and networks are compared by name, wherever they stand: another data set may have a place of its own.
    """
    values: dict[tuple[str, ...], list[Any]] = {}
    for path, value in _leaves(settings):
        place = path[-1:] if path[-1] in _NAMED else path
        if value is not None and value not in values.setdefault(place, []):
            values[place].append(value)
    return values


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the paths and values of nested settings, without the places in a list of efforts."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {own.name: getattr(value, own.name) for own in fields(value)}
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, (*path, str(name)))
    elif isinstance(value, tuple) and any(map(is_dataclass, value)):
        for item in value:
            yield from _leaves(item, path)
    else:
        yield path, value


def _difference(name: str, ours: list[Any], theirs: list[Any]) -> str:
    """Return a difference in words; empty for a setting that only the paper has, unless it is data or a network."""
    own = [value for value in ours if value not in theirs]
    printed = [value for value in theirs if value not in ours]
    named = name.replace("_", " ")
    words = "" if name in _NAMED else f"{named} "
    if not own:
        return f"without {_listed(list(map(_text, printed)), ', ')}" if printed and (name in _NAMED or ours) else ""
    if not printed:
        return f"{'also ' if name in _NAMED else words}{_listed(list(map(_text, own)), ', ')}"
    if len(own) == len(printed) == 1 and isinstance(own[0], tuple) and isinstance(printed[0], tuple):
        counts = len(own[0]), len(printed[0])
        if max(counts) > _SHORT:
            return f"{named}: {counts[0]} instead of {counts[1]}" if counts[0] != counts[1] else f"other {named}"
    return f"{words}{_listed(list(map(_text, own)), ', ')} instead of {_listed(list(map(_text, printed)), ', ')}"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value).removeprefix("normless:").replace(_UNSET, "")


def _listed(texts: list[str], separator: str = "; ") -> str:
    texts = list(filter(None, texts))
    more = len(texts) - _MOST
    return separator.join(texts[:_MOST]) + (f"{separator}{more} more" if more > 0 else "")
