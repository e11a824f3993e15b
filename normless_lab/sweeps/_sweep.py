"""A sweep: every combination of some settings, at every learning rate of a grid, with replicates."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from inspect import signature
from itertools import pairwise, product
from math import log2, prod
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, InstanceOf

from normless.errors import NormlessError
from normless.registry import did_you_mean
from normless_lab.process import read_yaml
from normless_lab.sweeps._runs import METRICS, kind_of
from normless_lab.train import Settings
from normless_lab.train._pauses import seconds_of
from normless_lab.train._settings import check_fields

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


Labels = tuple[str, ...]
Axis = Mapping[str, Mapping[str, Any]]
MOST_RUNS = 1_000_000
# An axis of such a name would hide a column of the table of runs.
RESERVED = ("rate", "seed", "outcome", "hash", "error")


class SweepError(NormlessError, ValueError):
    """A sweep is not valid; the message names the place, the expected value and the given value."""


def label_of(value: Any) -> str:
    """Return a value of a setting as a label: text unchanged, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def axis_of(setting: str, values: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the axis of a setting, with a label per value; raise a SweepError for duplicate labels."""
    axis = {label_of(value): {setting: value} for value in values}
    if len(axis) < len(values):
        raise SweepError(f"The values of the axis {setting} are not all different: {list(values)}.")
    return axis


def _axes(value: Any) -> Any:
    """Axes from a file: a list of values is the axis of the setting of that name, and labels become text."""

    def axis(name: str, labels: Any) -> Any:
        if isinstance(labels, list):
            return axis_of(name, labels)
        return _mapped(labels, lambda _, settings: {} if settings is None else settings)

    return {} if value is None else _mapped(value, axis)


def _mapped(value: Any, convert: Callable[[str, Any], Any]) -> Any:
    """Return a mapping with text as keys and converted values; other types, which validation refuses, unchanged."""
    if not isinstance(value, Mapping):
        return value
    return {label_of(key): convert(str(key), entry) for key, entry in value.items()}


def _exclusions(value: Any) -> Any:
    """Exclusions from a file, with text as labels."""
    if not isinstance(value, (list, tuple)):
        return () if value is None else value
    return tuple(_mapped(entry, lambda _, label: label_of(label)) for entry in value)


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        labels: by axis.
        config: all settings, with rate and seed; its hash identifies the run.
    """

    labels: Mapping[str, str]
    rate: float
    seed: int
    config: Settings


@dataclass(frozen=True)
class Sweep:
    """A set of configurations.

    Args:
        name: of the sweep.
        base: settings of every run.
        axes: for each axis its labels, and the settings that each overrides. A label whose settings include a rate is
            run at that one alone.
        rates: learning rates for each combination.
        replicates: runs at each point, with the seeds `seed`, `seed` + 1, …
        best: number of replicates that count; see `optima`.
        seed: the first seed.
        run: the kind of run; see `normless_lab.sweeps.kind_of`.
        exclude: labels by axis; combinations that have all labels of one entry are left out.
        keep_weights: keep the folders of the runs, with their weights; see `Laboratory.weights`.
        time_limit: duration, as 90s, 10m or 1.5h, after which a run is saved and is a failed row; to retry it is to
            go on with it. None for no limit.

    Raises:
        SweepError: a setting does not exist or a value is out of range, or no combination is left.
    """

    name: Annotated[str, Field(coerce_numbers_to_str=True)]
    base: Annotated[Mapping[str, Any], BeforeValidator(lambda value: value or {})]
    axes: Annotated[Mapping[str, Axis], BeforeValidator(_axes)]
    rates: Annotated[InstanceOf[RateGrid], BeforeValidator(RateGrid.from_value)]
    replicates: Annotated[int, Field(ge=1, strict=True)] = 15
    best: Annotated[int, Field(ge=1, strict=True)] = 12
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    run: str = "train"
    exclude: Annotated[tuple[Mapping[str, str], ...], BeforeValidator(_exclusions)] = ()
    keep_weights: bool = False
    time_limit: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, SweepError)
        if self.best > self.replicates:
            raise SweepError(
                f"The best {self.best} of {self.replicates} replicates cannot be taken; lower best or raise "
                "replicates."
            )
        runs = prod(map(len, self.axes.values())) * len(self.rates.rates) * self.replicates
        if runs > MOST_RUNS:
            raise SweepError(
                f"The axes, rates and replicates of the sweep {self.name} are {runs:,} runs; a sweep has at most "
                f"{MOST_RUNS:,}."
            )
        if self.time_limit is not None:
            self._check_time_limit(self.time_limit)
        self._check_settings()
        self._check_exclusions()
        self._check_combinations()

    @property
    def combinations(self) -> tuple[Labels, ...]:
        """The labels of every combination that is run, one label of each axis."""
        every = product(*self.axes.values())
        excluded = [set(pairs.items()) for pairs in self.exclude]
        return tuple(labels for labels in every if not any(pairs <= self.named(labels).items() for pairs in excluded))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The columns of the table of runs that an optimum can be requested for."""
        return (*METRICS, *kind_of(self.run).metrics)

    @property
    def seeds(self) -> range:
        """The seeds of the replicates."""
        return range(self.seed, self.seed + self.replicates)

    def named(self, labels: Labels) -> dict[str, str]:
        """Return the labels of a combination by axis."""
        return dict(zip(self.axes, labels, strict=True))

    def settings(self, labels: Labels) -> dict[str, Any]:
        """Return the settings of a combination; if two axes set the same field, the later axis wins."""
        settings = dict(self.base)
        for axis, label in self.named(labels).items():
            settings |= self.axes[axis][label]
        return settings

    def rates_of(self, labels: Labels) -> RateGrid:
        """Return the rates of a combination: the rate in its settings, or the rates of the sweep."""
        own = self.settings(labels).get("rate")
        return self.rates if own is None else RateGrid((own,), None)

    def points(self) -> tuple[Point, ...]:
        """Every run, by combination, then rate, then seed; without extensions of the rates."""
        return tuple(
            point for labels in self.combinations for point in self.points_at(labels, self.rates_of(labels).rates)
        )

    def points_at(self, labels: Labels, rates: Iterable[float]) -> tuple[Point, ...]:
        """Return the runs of one combination at some rates."""
        kind, settings, named = kind_of(self.run).settings_class(), self.settings(labels), self.named(labels)
        return tuple(
            Point(named, rate, seed, kind.from_dict(settings | {"rate": rate, "seed": seed}))
            for rate in rates
            for seed in self.seeds
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the sweep as in its file; `from_dict` reads it."""
        changed = {"rates": self.rates.to_dict(), "exclude": list(self.exclude)}
        return {"name": self.name, "run": self.run} | deepcopy(vars(self) | changed)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the sweep described by plain data.

        `rates` are as in `RateGrid.from_value`; all fields but these and `name` are optional. An axis is a list of
        values of the setting of its name, or a mapping from labels to settings. `best` is four fifths of `replicates`
        if only the latter is set. An unknown or missing key and a wrong value are a SweepError.
        """
        keys = [field.name for field in fields(cls)]
        unknown = [str(key) for key in values if key not in keys]
        missing = [key for key in ("name", "rates") if key not in values]
        if unknown or missing:
            problems = [f"{', '.join(unknown)} unknown"] * bool(unknown)
            problems += [f"{', '.join(missing)} missing"] * bool(missing)
            raise SweepError(f"A sweep has the keys {', '.join(keys)}; here {' and '.join(problems)}.")
        filled = {"base": {}, "axes": {}, **values}
        if isinstance(filled.get("replicates"), int):
            # The protocol's best 12 of 15.
            filled.setdefault("best", max(1, filled["replicates"] * 4 // 5))
        return cls(**filled)

    @classmethod
    def from_yaml(cls, path: Path | str) -> Self:
        """Return the sweep of a YAML file, see `from_dict`; raise a SweepError if the file is not valid."""
        try:
            values = read_yaml(path)
        except OSError as error:
            raise SweepError(f"The sweep {path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise SweepError(str(error)) from error
        if not isinstance(values, dict):
            raise SweepError(f"{path} should hold a mapping with name and rates, and holds {type(values).__name__}.")
        try:
            return cls.from_dict(values)
        except SweepError as error:
            raise SweepError(f"{path}: {error}") from error

    def _check_time_limit(self, limit: str) -> None:
        """Check that the limit is a duration, and that runs of this kind take one."""
        try:
            seconds_of(limit)
        except ValueError as error:
            raise SweepError(f"time_limit: {error}") from error
        parameters = signature(kind_of(self.run).function()).parameters.values()
        if not any(each.name == "time_limit" or each.kind is each.VAR_KEYWORD for each in parameters):
            raise SweepError(f"Runs of the kind {self.run} take no time_limit: their function has no such argument.")

    def _check_settings(self) -> None:
        """Check that every setting exists for the kind of run."""
        known = [field.name for field in fields(kind_of(self.run).settings_class())]
        places = {
            f"axes.{axis}.{label}": settings
            for axis, labels in self.axes.items()
            for label, settings in labels.items()
        }
        for place, settings in {"base": self.base, **places}.items():
            for name in settings:
                if name == "seed" or (name == "rate" and place == "base"):
                    raise SweepError(f"{place} sets {name}, which the sweep's rates and seed are for.")
                if name not in known:
                    hint = did_you_mean(str(name), known) or f" The settings are {', '.join(known)}."
                    raise SweepError(f"{place} sets {name!r}, which is not a setting of these runs.{hint}")
        for axis in self.axes:
            if axis in (*RESERVED, *self.metrics):
                raise SweepError(f"An axis cannot be called {axis}: the table of runs has a column of that name.")

    def _check_exclusions(self) -> None:
        for place, labels in enumerate(self.exclude, 1):
            if not labels:
                raise SweepError(f"Entry {place} of exclude names no label, and so would leave out everything.")
            for axis, label in labels.items():
                if axis not in self.axes:
                    raise SweepError(
                        f"exclude names the axis {axis!r}; the axes are {', '.join(self.axes) or 'none'}."
                    )
                if label not in self.axes[axis]:
                    raise SweepError(
                        f"exclude names {label!r} of the axis {axis}, which has {', '.join(self.axes[axis])}."
                    )

    def _check_combinations(self) -> None:
        """Check that there are combinations, and that each can be configured at its first rate and seed."""
        if not self.combinations:
            raise SweepError(f"The sweep {self.name} has no combination: all are excluded, or an axis has no label.")
        kind = kind_of(self.run).settings_class()
        for labels in self.combinations:
            try:
                kind.from_dict(self.settings(labels) | {"rate": self.rates_of(labels).rates[0], "seed": self.seed})
            except (ValueError, TypeError) as error:
                where = ", ".join(f"{axis} {label}" for axis, label in self.named(labels).items())
                raise SweepError(
                    f"The runs {f'of {where} ' if where else ''}cannot be configured: {error}"
                ) from error
