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
# Settings that describe an effort and decide nothing.
_DESCRIPTIONS = ("reduced", "plateau", "folder", "run")
_RECOMPRESSED = "CIFAR-10 recompressed as JPEG"
_NAMED = ("data", "model", "models", "shown")
_MOST, _SHORT = 3, 3


@dataclass(frozen=True)
class Distance:
    """How a set-up differs from the paper's, in words; empty where it does not.

    Attributes:
        known: whether the paper's own set-up is among the artefact's budgets.
    """

    data: str = ""
    network: str = ""
    length: str = ""
    seeds: str = ""
    known: bool = True

    @property
    def of_same_kind(self) -> bool:
        """Whether data and network are the paper's; images that were compressed again are of the same kind."""
        return self.known and not self.network and self.data in ("", _RECOMPRESSED)

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
        return Distance(known=False)
    ours, theirs = (dict(_leaves(settings[name])) for name in (budget, "paper"))
    texts: dict[str, dict[str, None]] = {name: {} for name in ("data", "network", "length", "seeds")}
    for path in dict.fromkeys([*ours, *theirs]):
        own, printed = ours.get(path), theirs.get(path)
        if path[-1] == "data" and own is not None:
            own = data or own
        elsewhere = own is None and any(other[-1] == path[-1] and ours[other] == printed for other in ours)
        if own != printed and not elsewhere and path[-1] not in _DESCRIPTIONS:
            texts[_ASPECTS.get(path[-1], "length")][_difference(path[-1], own, printed)] = None
    said = {name: _listed(list(found)) for name, found in texts.items()}
    if "JPEG" in origin and not said["data"]:
        said["data"] = _RECOMPRESSED
    return Distance(said["data"], said["network"], said["length"], said["seeds"])


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the paths and values of nested settings."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {own.name: getattr(value, own.name) for own in fields(value)}
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _leaves(item, (*path, str(name)))
    elif isinstance(value, tuple) and any(map(is_dataclass, value)):
        for place, item in enumerate(value):
            yield from _leaves(item, (*path, getattr(item, "model", "") or str(place)))
    else:
        yield path, value


def _difference(name: str, own: Any, printed: Any) -> str:
    """Return a difference in words; empty for a setting that only the paper has, unless it is data or a network."""
    words = name.replace("_", " ")
    if own is None:
        return f"without {_text(printed)}" if name in _NAMED else ""
    if printed is None:
        return f"also {_text(own)}" if name in _NAMED else f"{words} {_text(own)}"
    if isinstance(own, tuple) and isinstance(printed, tuple) and max(len(own), len(printed)) > _SHORT:
        return f"{len(own)} {words} instead of {len(printed)}" if len(own) != len(printed) else f"other {words}"
    return f"{'' if name in _NAMED else f'{words} '}{_text(own)} instead of {_text(printed)}"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value).removeprefix("normless:")


def _listed(texts: list[str]) -> str:
    texts = list(filter(None, texts))
    more = len(texts) - _MOST
    return "; ".join(texts[:_MOST]) + (f"; {more} more" if more > 0 else "")
