"""What the results of all kinds of runs share, and the rows of their epochs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, ClassVar, Protocol, Self

from normless.train.outcome import Outcome


class Row(Protocol):
    """A dataclass of numbers about one finished epoch."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def epoch(self) -> int:
        """Number of epochs finished with this one, from 1."""

    @property
    def training_loss(self) -> float:
        """Mean of the losses (nats) of the epoch's steps."""

    @property
    def seconds(self) -> float:
        """Wall time of the epoch's training, without evaluating and saving."""

    @property
    def score(self) -> str:
        """How good the network is, in a few words."""


class Report(ABC):
    """Base of the frozen dataclasses that say how a run ended; each has `epochs`, a tuple of rows, as its last field.

    Attributes:
        ROW: the kind of the rows.
        outcome: trained, chance or diverged; see `normless.train.outcome`.
    """

    ROW: ClassVar[type[Row]]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    outcome: Outcome

    @property
    @abstractmethod
    def score(self) -> str:
        """How good the network is, in a few words."""

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, ready for JSON; a number that is not finite becomes its name as text."""
        values = asdict(self)
        values["epochs"] = [_to_json(row) for row in values["epochs"]]
        return _to_json(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        row: Any = cls.ROW
        rows = tuple(row(**_from_json(row, one)) for one in values["epochs"])
        return cls(**_from_json(cls, values) | {"epochs": rows})


def _to_json(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity and no NaN; their names (`inf`, `nan`) stand for them."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def _from_json(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    real = {field.name for field in fields(kind) if str(field.type).startswith("float")}
    return {name: float(value) if name in real and value is not None else value for name, value in values.items()}
