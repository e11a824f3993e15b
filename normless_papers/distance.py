"""The distance of a set-up from the paper's: how its data, network, length and seeds differ, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from normless_papers.budgets import OF_RUNS, Aspect, Budget, aspects_of

if TYPE_CHECKING:
    from normless_papers.artefact import Artefact

_MOST, _SHORT = 3, 3
# How far a grid may be extended describes it, and decides nothing.
_OF_GRIDS = {"extensions": Aspect("")}
# A setting in whose place the user's data set is measured or trained on.
_DATA_SET = Aspect("data", named=True)
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
    artefact: Artefact,
    budget: Budget,
    data: str | None = None,
    origin: str = "",
    settings: Mapping[Budget, Mapping[str, Any]] | None = None,
) -> Distance:
    """Compare the settings of an artefact's function at a budget with those at the paper's own.

    Args:
        data: the user's data set in place of the budget's.
        origin: the provenance of the data set.
        settings: by budget; the artefact's own if None.
    """
    settings = artefact.settings if settings is None else settings
    if "paper" not in settings:
        return Distance(of_same_kind=False, known=False)
    ours, theirs = (_values(settings[name], artefact.aspects) for name in (budget, "paper"))
    if data is not None:
        ours |= {place: [data] for place in ours if place.aspect == _DATA_SET}
    texts: dict[str, dict[str, None]] = {name: {} for name in ("data", "network", "length", "seeds")}
    of_same_kind = True
    for place in dict.fromkeys([*ours, *theirs]):
        own, printed = ours.get(place, []), theirs.get(place, [])
        texts[place.aspect.of][_difference(place, own, printed)] = None
        if place.aspect.of in ("data", "network") and not _elements(own) <= _elements(printed):
            of_same_kind = False
    said = {name: _listed(list(found)) for name, found in texts.items()}
    if "JPEG" in origin and not said["data"]:
        said["data"] = "CIFAR-10 recompressed as JPEG"
    return Distance(said["data"], said["network"], said["length"], said["seeds"], of_same_kind)


@dataclass(frozen=True)
class _SettingPlace:
    """Where a setting stands; of one that is named, its name alone: another data set may have a place of its own."""

    path: tuple[str, ...]
    aspect: Aspect


def _elements(values: list[Any]) -> set[str]:
    """Return single values, and the elements of lists, as text."""
    return {str(item) for value in values for item in (value if isinstance(value, tuple) else (value,))}


def _values(settings: Mapping[str, Any], declared: Mapping[str, Aspect]) -> dict[_SettingPlace, list[Any]]:
    """Return the values of nested settings by their places, those of several efforts together."""
    values: dict[_SettingPlace, list[Any]] = {}
    for path, value, aspect in _leaves(settings, (), declared):
        place = _SettingPlace(path[-1:] if aspect.named else path, aspect)
        if aspect.of and value is not None and value not in values.setdefault(place, []):
            values[place].append(value)
    return values


def _leaves(
    settings: Mapping[str, Any], path: tuple[str, ...], declared: Mapping[str, Aspect]
) -> Iterator[tuple[tuple[str, ...], Any, Aspect]]:
    """Yield the paths, values and aspects of nested settings, without the places in a list of efforts."""
    # Reading results does not need the laboratory.
    from normless_lab.sweeps import RateGrid

    for name, value in settings.items():
        here, aspect = (*path, str(name)), declared.get(name, Aspect())
        efforts = value if isinstance(value, tuple) and any(map(is_dataclass, value)) else (value,)
        for own in efforts if aspect.of else ():
            if is_dataclass(own) and not isinstance(own, type):
                yield from _leaves(vars(own), here, _OF_GRIDS if isinstance(own, RateGrid) else aspects_of(type(own)))
            elif isinstance(own, Mapping):
                yield from _leaves(own, here, OF_RUNS)
            else:
                yield here, own, aspect


def _difference(place: _SettingPlace, ours: list[Any], theirs: list[Any]) -> str:
    """Return a difference in words; empty for a setting that only the paper has, unless it is data or a network."""
    own = [value for value in ours if value not in theirs]
    printed = [value for value in theirs if value not in ours]
    named, known = place.path[-1].replace("_", " "), place.aspect.named
    words = "" if known else f"{named} "
    if not own:
        return f"without {_listed(list(map(_text, printed)), ', ')}" if printed and (known or ours) else ""
    if not printed:
        return f"{'also ' if known else words}{_listed(list(map(_text, own)), ', ')}"
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
