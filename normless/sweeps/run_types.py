"""The kinds of runs a sweep can be made of: of each, its configuration, what carries it out, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, cast

from normless.errors import NormlessError
from normless.train import Report, Settings


class UnknownKindError(NormlessError, ValueError):
    """No kind of run has this name; the message says what there is."""


@dataclass(frozen=True)
class Kind:
    """A kind of run, by the names of what it needs; each is imported when it is asked for.

    Attributes:
        settings: `MODULE:NAME` of its configuration, a kind of `Settings`.
        carry_out: of the function (configuration, directory, listeners=…) → result that carries a run out or goes on
            with it.
        result: of what that returns, a kind of `Report`.
    """

    settings: str
    carry_out: str
    result: str

    def settings_class(self) -> type[Settings]:
        """The class of its configurations."""
        return cast(type[Settings], _named(self.settings))

    def function(self) -> Callable[..., Report]:
        """What carries a run out: called with a configuration and the run's own directory."""
        return cast(Callable[..., Report], _named(self.carry_out))

    def result_class(self) -> type[Report]:
        """The class of its results."""
        return cast(type[Report], _named(self.result))


_TRAINING = "normless.train"

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "train": Kind(f"{_TRAINING}:TrainConfig", f"{_TRAINING}:train", f"{_TRAINING}:RunResult"),
        "train-translation": Kind(
            f"{_TRAINING}:TranslationConfig", f"{_TRAINING}:train", f"{_TRAINING}:TranslationResult"
        ),
        "train-text": Kind(f"{_TRAINING}:TextConfig", f"{_TRAINING}:train", f"{_TRAINING}:TextResult"),
    }
)


def kind_of(name: str) -> Kind:
    """The kind of a name in the table; or, from `MODULE:NAME`, a kind that lies elsewhere.

    Raises:
        UnknownKindError: there is none.
    """
    if name in KINDS:
        return KINDS[name]
    try:
        found = _named(name)
    except (ImportError, AttributeError, ValueError):
        found = None
    if not isinstance(found, Kind):
        raise UnknownKindError(
            f"There is no kind of run {name!r}; there are {', '.join(KINDS)}, and one of your own is written "
            "MODULE:NAME of a normless.sweeps.run_types.Kind."
        )
    return found


def _named(text: str) -> Any:
    """What a module calls by a name."""
    module, _, name = text.partition(":")
    return getattr(import_module(module), name)
