"""The expected seconds of runs on a card: by finished rows of the same network and device, else by `speeds.yaml`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from normless.spec import parse_call
from normless_lab.process import read_yaml
from normless_lab.sweeps import RunRow
from normless_lab.train import Settings

# The settings by which runs cost the same per example, from the most to the least precise.
_ALIKE = (("model", "scheme", "batch_size"), ("model", "batch_size"))


class Speeds:
    """The seconds of runs, as far as finished rows or `speeds.yaml` say them.

    Args:
        rows: finished runs.
        device: the processor of the runs to come, as `TrainingResult.device`; only rows of the same one count.
    """

    def __init__(self, rows: Collection[RunRow] = (), device: str = "") -> None:
        seconds: dict[str, list[float]] = defaultdict(list)
        trained = [row for row in rows if (row.result or {}).get("device") == device]
        # Other runs shared the seconds of their machine.
        shares = shared_seconds(row for row in rows if row.outcome != "failed")
        for row in trained:
            examples = len((row.result or {}).get("epochs", ())) * examples_of(row.config.get("data", ""))
            if examples > 0:
                for names in _ALIKE:
                    seconds[_key(row.config, names)].append(shares[row.hash] / examples)
        self._by_example = {key: sum(values) / len(values) for key, values in seconds.items()}

    def seconds(self, config: Settings) -> float:
        """Return the expected seconds of a run, its share if several run side by side; NaN if nothing says them."""
        values = config.to_dict()
        examples = float(values.get("epochs", math.nan)) * examples_of(values.get("data", ""))
        for names in _ALIKE:
            if (key := _key(values, names)) in self._by_example:
                return examples * self._by_example[key]
        return _on_h100(values, examples)


def shared_seconds(rows: Iterable[RunRow]) -> dict[str, float]:
    """Return by hash the seconds of its machine that a run took; each second is shared by the runs that ran in it."""
    spans: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
    for row in rows:
        end = datetime.fromisoformat(row.finished_at).timestamp()
        spans[row.machine].append((end - row.seconds, end, row.hash))
    shares: dict[str, float] = defaultdict(float)
    for own in spans.values():
        for start, end in pairwise(sorted({time for span in own for time in span[:2]})):
            active = [name for first, last, name in own if first <= start and end <= last]
            for name in active:
                shares[name] += (end - start) / len(active)
    return shares


def examples_of(data: str) -> float:
    """Return the number of training examples of a data set as text; NaN if it is not known."""
    try:
        name, arguments = parse_call(data)
    except ValueError:
        return math.nan
    return float(arguments.get("train", _table()["examples"].get(name, math.nan)))


def _key(values: Mapping[str, Any], names: Iterable[str]) -> str:
    return repr([values.get(name) for name in names])


def _on_h100(values: Mapping[str, Any], examples: float) -> float:
    """Return the seconds of a run by `speeds.yaml`; NaN for another network."""
    try:
        name, arguments = parse_call(str(values.get("model")).partition(":")[2])
    except ValueError:
        return math.nan
    depth = arguments.get("depth", 0)
    for speed in _table()["speeds"]:
        own, needed = parse_call(speed["model"])
        layers = needed.pop("depth", depth)
        fits = own == name and needed.items() <= arguments.items()
        if fits and speed.get("batch_size") in (None, values.get("batch_size")):
            slower = [factor for scheme, factor in _table()["slower"].items() if _scheme(values).startswith(scheme)]
            each = max(slower, default=1.0) / speed["examples_per_second"] * (depth / layers if layers else 1)
            set_up = _table()["set_up"]
            return float(set_up["run"] + set_up["layer"] * depth + examples * each)
    return math.nan


def _scheme(values: Mapping[str, Any]) -> str:
    return str(values.get("scheme", ""))


def seconds_of_artefact(name: str) -> float:
    """Return the seconds of an artefact that trains nothing; 0 if they are not stated."""
    return float(_table()["artefacts"].get(name, 0.0))


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = read_yaml(Path(__file__).with_suffix(".yaml"))
    return table
