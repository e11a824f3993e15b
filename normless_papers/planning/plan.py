"""What artefacts still need at a budget, and the order in which claims are decided by the fewest seconds each."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from normless_lab.sweeps import Laboratory, needed_runs
from normless_lab.train import Settings
from normless_lab.train.arithmetic import device_name
from normless_papers.artefact import Artefact, Budget, Context, artefact_of
from normless_papers.pages.headline import headlines
from normless_papers.planning.speeds import Speeds, seconds_of_artefact
from normless_papers.published import published_as
from normless_papers.results.reproduce import laboratory_in
from normless_papers.results.reproduction import plain
from normless_papers.results.storage import load


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
