"""The campaign: the trainings and measurements that the papers' verdicts still lack, carried out beside other work.

`campaign.yaml` lists artefacts and budgets in the order of their worth. Processes of one thread each take the
measurements and the missing runs of the trainings in that order. A run resumes from its checkpoint on the same
machine; finished rows and measurements are kept in a file of `normless_papers.results.run_file`, from which a
campaign on another machine goes on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path

import yaml

from normless_lab.process import read_yaml
from normless_lab.sweeps import (
    Attempt,
    Laboratory,
    LaboratoryListener,
    LocalExecutor,
    finished_epochs,
)
from normless_lab.train import TimeLimitError
from normless_papers.artefact import Context, artefact_of
from normless_papers.budgets import Budget
from normless_papers.planning.plan import missing_runs
from normless_papers.results.reproduce import laboratory_in, reproduce
from normless_papers.results.reproduction import Reproduction, load, plain
from normless_papers.results.run_file import add_rows

CLOCK = time.monotonic
# A process that is killed loses at most this much of a run.
CHECKPOINTS = "5m"


@dataclass(frozen=True)
class CampaignEntry:
    """An artefact to carry out at a budget.

    Attributes:
        minutes: the most core-minutes that a measurement is expected to take; measurements do not resume, so that one
            begins only if so much time is left.
    """

    artefact: str
    budget: Budget
    minutes: float = 0.0

    @property
    def trains(self) -> bool:
        """Whether it consists of training runs, which resume."""
        return artefact_of(self.artefact).basis == "training"


@dataclass(frozen=True)
class EntryStatus:
    """What of an entry is carried out: its result, or the finished runs among those known so far.

    Attributes:
        running: finished epochs and all epochs of each unfinished run that has begun, by a text of its settings.
    """

    entry: CampaignEntry
    result: Reproduction | None
    finished: int = 0
    wanted: int = 0
    running: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@cache
def entries() -> tuple[CampaignEntry, ...]:
    """Return the entries of `campaign.yaml`, in order."""
    return tuple(CampaignEntry(**values) for values in read_yaml(Path(__file__).with_suffix(".yaml"))["entries"])


@dataclass(frozen=True)
class Campaign:
    """A campaign in a folder.

    Attributes:
        out: folder of the results, and of the laboratory.
        data_root: folder of the data sets; the default folder if None.
        entries: what to carry out, in this order.
    """

    out: Path
    data_root: str | None = None
    entries: tuple[CampaignEntry, ...] = field(default_factory=entries)

    def take_over(self, runs: Path) -> None:
        """Add the rows and measurements of a file of runs that the folder lacks; write the sweeps of the trainings.

        `normless sweep status OUT/sweeps/NAME.yaml --out OUT/laboratory` shows the progress of one of these.
        """
        # Others in the folder would later stand for what was measured anew elsewhere.
        add_rows(runs, self.out, only={(entry.artefact, entry.budget) for entry in self.entries})
        folder = self.out / "sweeps"
        folder.mkdir(parents=True, exist_ok=True)
        for entry in (entry for entry in self.entries if entry.trains):
            context = Context(entry.budget, folder, data_root=self.data_root)
            trainings = artefact_of(entry.artefact).trainings(context).values()
            for sweep in (sweep for training in trainings for sweep in training.sweeps):
                file = re.sub(r"\W+", "-", f"{entry.artefact} {entry.budget} {sweep.name}") + ".yaml"
                (folder / file).write_text(yaml.safe_dump(sweep.to_dict(), sort_keys=False), encoding="utf-8")

    def carry_out(self, minutes: float, *, workers: int = 2, listener: LaboratoryListener | None = None) -> None:
        """Carry out what is missing until the minutes are over or nothing is missing; unfinished runs are saved.

        Args:
            workers: processes of one thread each, of the lowest priority.
            listener: notified of finished runs.
        """
        end = CLOCK() + 60 * minutes

        def left() -> float:
            return end - CLOCK()

        processes = partial(LocalExecutor, workers, threads=1, background=True)
        with (
            laboratory_in(self.out, listener=listener, executor=processes, seconds_left=left) as laboratory,
            suppress(TimeLimitError),
        ):
            measured: list[Future[str]] = []
            # Trainings take a process as soon as one is free; of the measurements only the end is waited for.
            for trains, group in groupby(self.entries, key=lambda entry: entry.trains):
                part = replace(self, entries=tuple(group))
                if not trains:
                    measured += [self._measured(laboratory, entry) for entry in part._measurements(left())]
                    continue
                while attempts := part.missing():
                    laboratory.execute(list(attempts.values()))
            wait(measured, timeout=max(0.0, left()))
        self.missing()

    def missing(self) -> dict[str, Attempt]:
        """Return the missing runs by hash, in order, and make the results of the entries that lack none."""
        missing: dict[str, Attempt] = {}
        with laboratory_in(self.out) as laboratory:
            for entry in self.entries:
                if entry.trains and self._result(entry) is None:
                    own, _ = self._missing_of(entry, laboratory)
                    missing |= own
                    if not own:
                        reproduce(
                            entry.artefact,
                            entry.budget,
                            out=self.out,
                            data_root=self.data_root,
                            laboratory=laboratory,
                            trains=False,
                        )
        return missing

    def status(self) -> list[EntryStatus]:
        """Return what is carried out of each entry."""
        found = []
        with laboratory_in(self.out) as laboratory:
            for entry in self.entries:
                result = self._result(entry)
                if not entry.trains or result is not None:
                    runs = len(result.runs) if result else 0
                    found.append(EntryStatus(entry, result, runs, runs))
                    continue
                missing, wanted = self._missing_of(entry, laboratory)
                begun = [run for run in missing.values() if (run.work / run.hash).exists()]
                running = {_named(run): (finished_epochs(run.work / run.hash), run.config.epochs) for run in begun}
                found.append(EntryStatus(entry, None, wanted - len(missing), wanted, running))
        return found

    def _result(self, entry: CampaignEntry) -> Reproduction | None:
        """Return the result of an entry; None without one of its settings, or if an error ended it."""
        result = load(self.out, entry.artefact, entry.budget)
        if result is None or result.error:
            return None
        settings = plain(artefact_of(entry.artefact).settings[entry.budget])
        return result if result.asked["settings"] == settings else None

    def _missing_of(self, entry: CampaignEntry, laboratory: Laboratory) -> tuple[dict[str, Attempt], int]:
        """Return the missing runs of an entry by hash, and the number of all its runs."""
        context = Context(entry.budget, self.out, data_root=self.data_root)
        missing, wanted = missing_runs(artefact_of(entry.artefact), context, laboratory)
        options = {"checkpoint_every": CHECKPOINTS}
        return {
            name: Attempt(name, config, laboratory.work, None, options) for name, config in missing.items()
        }, wanted

    def _measurements(self, seconds: float) -> Iterator[CampaignEntry]:
        """Yield the measurements without a result that are expected to end in time."""
        for entry in self.entries:
            if not entry.trains and 60 * entry.minutes <= seconds and self._result(entry) is None:
                yield entry

    def _measured(self, laboratory: Laboratory, entry: CampaignEntry) -> Future[str]:
        """Carry out a measurement in a process of the laboratory; the future has its verdict."""
        return laboratory.submit(measure, entry.artefact, entry.budget, str(self.out), self.data_root)


def measure(artefact: str, budget: Budget, out: str, data_root: str | None) -> str:
    """Carry out an artefact that trains nothing; return its verdict."""
    return reproduce(artefact, budget, out=Path(out), data_root=data_root, workers=1).verdict


def _named(run: Attempt) -> str:
    values = run.config.to_dict()
    return ", ".join(f"{values[name]}" for name in ("model", "scheme") if name in values) + (
        f", lr {values['rate']:g}, seed {values['seed']}"
    )
