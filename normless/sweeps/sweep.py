"""A sweep: every combination of some settings, at every learning rate of a grid, with replicates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Self

from normless.sweeps.rates import RateGrid
from normless.sweeps.run_types import kind_of
from normless.sweeps.sweep_checks import SweepError, check_sweep
from normless.train import Settings

Labels = tuple[str, ...]
Axis = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        labels: what the run has on each axis.
        rate: its learning rate.
        seed: its seed.
        config: all its settings; its hash names the run.
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
        axes: for each axis its labels, and the settings that each overrides. A label whose settings hold a rate is
            run at that one alone.
        rates: learning rates that each combination is tried at.
        replicates: runs at each point, of seeds `seed`, `seed` + 1, …
        best: how many of them count; see `optima`.
        seed: the first seed.
        run: the kind of run, a name in `normless.sweeps.run_types`.
        exclude: labels by axis; combinations that have all labels of one of these are left out.

    Raises:
        SweepError: a setting does not exist or is out of range, no combination is left, or a number is below 1; names
            where it stands.
    """

    name: str
    base: Mapping[str, Any]
    axes: Mapping[str, Axis]
    rates: RateGrid
    replicates: int = 15
    best: int = 12
    seed: int = 0
    run: str = "train"
    exclude: tuple[Mapping[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        check_sweep(self)

    @property
    def combinations(self) -> tuple[Labels, ...]:
        """The labels, one of each axis in the axes' order, of every combination that is run."""
        every = product(*(axis for axis in self.axes.values()))
        return tuple(labels for labels in every if not self._is_excluded(self.named(labels)))

    @property
    def seeds(self) -> range:
        """Of the replicates."""
        return range(self.seed, self.seed + self.replicates)

    def named(self, labels: Labels) -> dict[str, str]:
        """The labels of a combination by their axes."""
        return dict(zip(self.axes, labels, strict=True))

    def settings(self, labels: Labels) -> dict[str, Any]:
        """What a combination sets; of two axes that set the same the later wins."""
        settings = dict(self.base)
        for axis, label in self.named(labels).items():
            settings |= self.axes[axis][label]
        return settings

    def rates_of(self, labels: Labels) -> RateGrid:
        """The rates that a combination is tried at: its own one, or the sweep's."""
        own = self.settings(labels).get("rate")
        return self.rates if own is None else RateGrid((own,), None)

    def points(self) -> tuple[Point, ...]:
        """Every run, by combination, then rate, then seed; extensions of the rates are not among them."""
        return tuple(
            point for labels in self.combinations for point in self.points_at(labels, self.rates_of(labels).rates)
        )

    def points_at(self, labels: Labels, rates: Iterable[float]) -> tuple[Point, ...]:
        """The runs of one combination at some rates."""
        kind, settings, named = kind_of(self.run).settings_class(), self.settings(labels), self.named(labels)
        return tuple(
            Point(named, rate, seed, kind.from_dict(settings | {"rate": rate, "seed": seed}))
            for rate in rates
            for seed in self.seeds
        )

    def to_dict(self) -> dict[str, Any]:
        """As a file of a sweep has it; `from_dict` reads it."""
        return {
            "name": self.name,
            "run": self.run,
            "base": dict(self.base),
            "axes": {name: {label: dict(held) for label, held in axis.items()} for name, axis in self.axes.items()},
            "rates": self.rates.to_dict(),
            "replicates": self.replicates,
            "best": self.best,
            "seed": self.seed,
            "exclude": [dict(labels) for labels in self.exclude],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The sweep that plain data describes.

        Args:
            values: `name`; `axes`, of each either a list of values of the setting that is its name, or a mapping from
                labels to the settings they override; `rates` as in `RateGrid.from_value`; the others as the fields of
                this class. Only `name` and `rates` are needed.

        Raises:
            SweepError: a key is unknown or missing, or a value is not what it should be.
        """
        from normless.sweeps.sweep_file import fields_of

        return cls(**fields_of(values))

    @classmethod
    def from_yaml(cls, path: Path | str) -> Self:
        """The sweep that a YAML file describes, as `from_dict` reads it.

        Raises:
            SweepError: the file is not there, is no YAML, or does not describe a sweep.
        """
        from normless.sweeps.sweep_file import read_mapping

        try:
            return cls.from_dict(read_mapping(Path(path)))
        except SweepError as error:
            message = str(error)
            raise (error if str(path) in message else SweepError(f"{path}: {message}")) from error

    def _is_excluded(self, named: Mapping[str, str]) -> bool:
        return any(all(named[axis] == label for axis, label in one.items()) for one in self.exclude)


def axis_of(setting: str, values: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """The axis of a setting: each value under its own text, as YAML writes it.

    Raises:
        SweepError: two values have the same text.
    """
    axis = {label_of(value): {setting: value} for value in values}
    if len(axis) < len(values):
        raise SweepError(f"The values of the axis {setting} are not all different: {list(values)}.")
    return axis


def label_of(value: Any) -> str:
    """A value of a setting as a label: a text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
