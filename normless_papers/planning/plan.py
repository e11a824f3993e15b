"""What artefacts still need at a budget, how long it takes, and the order in which it decides most per second."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from normless.spec import parse_call
from normless_lab.process import read_yaml
from normless_lab.sweeps import Laboratory, RunRow, needed_runs
from normless_lab.train import Settings, device_name
from normless_papers.artefact import Artefact, Budget, Context, artefact_of
from normless_papers.pages.headline import headlines
from normless_papers.published import published_as
from normless_papers.results.reproduce import laboratory_in
from normless_papers.results.reproduction import load, plain

# The settings by which runs cost the same per example, from the most to the least precise.
_ALIKE = (("model", "scheme", "batch_size"), ("model", "batch_size"))


class Speeds:
    """The seconds of runs, as far as finished rows or `plan.yaml` say them.

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
    """Return the seconds of a run by `plan.yaml`; NaN for another network."""
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


@dataclass(frozen=True)
class Need:
    """What an artefact still needs: seconds of its missing runs by hash, and those of measuring without training."""

    runs: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class Step:
    """Artefacts to carry out next, the claims that they decide, and the expected seconds, NaN if not known."""

    claims: tuple[str, ...]
    artefacts: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the step as plain data for JSON."""
        return vars(self) | {"seconds": None if math.isnan(self.seconds) else self.seconds}


def claims_at(budget: Budget) -> dict[str, tuple[str, ...]]:
    """Return the artefacts of each headline claim, of those whose artefacts all have settings of this budget."""
    return {
        headline.claim: tuple(headline.checks)
        for headline in headlines()
        if all(budget in published_as(name).budgets for name in headline.checks)
    }


def missing_runs(artefact: Artefact, context: Context, laboratory: Laboratory) -> tuple[dict[str, Settings], int]:
    """Return the configurations of the runs by hash that an artefact lacks, and the number of all that it needs.

    Learning rates may be extended once these are finished.
    """
    missing, every = dict[str, Settings](), set[str]()
    for training in artefact.trainings(context).values():
        for sweep in training.sweeps:
            needed = needed_runs(sweep, training.metrics, laboratory.state.read)
            missing |= {name: point.config for name, point in needed.missing.items()}
            every |= {name for name, _ in needed.points}
    return missing, len(every)


def needs_of(names: Iterable[str], budget: Budget, out: Path, **options: Any) -> dict[str, Need]:
    """Return by id what the unfinished artefacts among some need; nothing is trained.

    Args:
        out: folder of results.
        options: fields of `Context`.
    """
    with laboratory_in(out) as laboratory, tempfile.TemporaryDirectory() as folder:
        speeds = Speeds(list(laboratory.state.read(laboratory.state.hashes()).values()), _device())
        context = Context(budget, Path(folder), **options)
        asked = {"data": context.data, "data_root": context.data_root, "seed": context.seed}
        needs = {}
        for name in dict.fromkeys(names):
            artefact = artefact_of(name)
            settings = artefact.settings[budget]
            done = load(out, artefact.published.id, budget)
            if done is not None and not done.error and done.asked == asked | {"settings": plain(settings)}:
                continue
            if artefact.basis != "training":
                needs[name] = Need(seconds=seconds_of_artefact(name))
                continue
            missing, _ = missing_runs(artefact, context, laboratory)
            needs[name] = Need({name: speeds.seconds(config) for name, config in missing.items()})
        return needs


def steps_of(claims: Mapping[str, Sequence[str]], needs: Mapping[str, Need]) -> list[Step]:
    """Return the steps that decide the undecided claims, first what decides most per second.

    A claim is decided when all its artefacts are carried out; runs that several artefacts share count once. Steps
    without runs, which need no card, come last, and before them those of unknown length.
    """
    left = {claim: set(names) & needs.keys() for claim, names in claims.items()}
    left = {claim: names for claim, names in left.items() if names}
    steps, done, carried_out = [], set[str](), set[str]()
    while left:
        options = []
        for names in left.values():
            runs = {run: seconds for name in names for run, seconds in needs[name].runs.items()}
            seconds = sum(own for run, own in runs.items() if run not in carried_out)
            seconds += sum(needs[name].seconds for name in names - done)
            decided = tuple(claim for claim, own in left.items() if own <= names | done)
            price = math.inf if math.isnan(seconds) else seconds / len(decided)
            options.append(((not runs, price), decided, names, seconds))
        _, decided, names, seconds = min(options, key=lambda option: option[0])
        order = dict.fromkeys(name for claim in decided for name in claims[claim] if name in names - done)
        steps.append(Step(decided, tuple(order), seconds))
        done |= names
        carried_out |= {run for name in names for run in needs[name].runs}
        left = {claim: own for claim, own in left.items() if claim not in decided}
    return steps


def claim_minutes() -> dict[str, int]:
    """Return the expected minutes of each headline claim on one H100 from the start, without runs of other claims."""
    claims = claims_at("gpu")
    with tempfile.TemporaryDirectory() as folder:
        needs = needs_of((name for names in claims.values() for name in names), "gpu", Path(folder))
    steps = {claim: steps_of({claim: names}, needs) for claim, names in claims.items()}
    return {claim: math.ceil(sum(step.seconds for step in own) / 60) for claim, own in steps.items()}


def _device() -> str:
    """Return the processor of the runs to come, as `TrainingResult.device`."""
    import torch

    return device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
