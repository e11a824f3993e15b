"""A sweep as plain data, as it stands in a YAML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from normless.sweeps.rates import RateGrid
from normless.sweeps.sweep import axis_of, label_of
from normless.sweeps.sweep_checks import SweepError

_KEYS = ("name", "run", "base", "axes", "rates", "replicates", "best", "seed", "exclude")


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Raises:
        SweepError: the file is not there, is no YAML, or holds something else.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SweepError(f"The sweep {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SweepError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise SweepError(f"{path} should hold a mapping with {', '.join(_KEYS)}, and holds {type(values).__name__}.")
    return values


def fields_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a `Sweep` from its plain data.

    Raises:
        SweepError: a key is unknown or missing, or a value is not what it should be.
    """
    unknown = [str(key) for key in values if key not in _KEYS]
    missing = [key for key in ("name", "rates") if key not in values]
    if unknown or missing:
        parts = [f"{', '.join(unknown)} unknown"] * bool(unknown) + [f"{', '.join(missing)} missing"] * bool(missing)
        raise SweepError(f"A sweep has the keys {', '.join(_KEYS)}; here {' and '.join(parts)}.")
    found: dict[str, Any] = {"name": str(values["name"]), "run": str(values.get("run", "train"))}
    found["base"] = _mapping("base", values.get("base"))
    found["axes"] = {
        str(name): _axis(str(name), labels) for name, labels in _mapping("axes", values.get("axes")).items()
    }
    try:
        found["rates"] = RateGrid.from_value(values["rates"])
    except (ValueError, TypeError) as error:
        raise SweepError(f"rates: {error}") from error
    for name in ("replicates", "best", "seed"):
        if name in values:
            found[name] = _whole(name, values[name])
    if "replicates" in found and "best" not in found:
        # Four of five, as the protocol's best 12 of 15.
        found["best"] = max(1, found["replicates"] * 4 // 5)
    found["exclude"] = _exclusions(values.get("exclude") or [])
    return found


def _mapping(place: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise SweepError(f"Expected a mapping at {place}, got {value!r}.")
    return dict(value)


def _axis(name: str, value: Any) -> dict[str, dict[str, Any]]:
    if isinstance(value, list):
        return axis_of(name, value)
    labels = _mapping(f"axes.{name}", value)
    return {label_of(label): _mapping(f"axes.{name}.{label}", settings) for label, settings in labels.items()}


def _whole(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SweepError(f"Expected a whole number for {name}, got {value!r}.")
    return value


def _exclusions(value: Any) -> tuple[dict[str, str], ...]:
    if not isinstance(value, list):
        raise SweepError(f"Expected a list of labels by axis at exclude, got {value!r}.")
    entries = [_mapping(f"entry {place} of exclude", one) for place, one in enumerate(value, 1)]
    return tuple({str(axis): label_of(label) for axis, label in one.items()} for one in entries)
