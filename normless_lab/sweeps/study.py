"""Studies of Optuna over the configurations of a sweep; its pruners end runs that are hopeless."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, Self

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution

from normless.errors import NormlessError
from normless.registry import did_you_mean
from normless_lab.sweeps.optimum import is_minimized
from normless_lab.sweeps.runs import RunRow, kind_of
from normless_lab.sweeps.store import RunState, sqlite_url
from normless_lab.sweeps.sweep import Sweep, SweepError
from normless_lab.sweeps.worker import carry_out_run
from normless_lab.train import RunListener, RunStart, Settings

STORAGE = "study.sqlite"


class RunFailedError(NormlessError):
    """A run of a study raised an error; `study.optimize(…, catch=(RunFailedError,))` goes on with other trials."""


def sweep_study(
    sweep: Sweep, folder: Path | str, *, metric: str = "test_accuracy", storage: str | None = None, **options: Any
) -> optuna.Study:
    """Create the study of a sweep, or load it; it is named after the sweep.

    Args:
        sweep: the configurations.
        folder: of the runs; made if missing.
        metric: a column of the table of runs; losses are minimized, other metrics are maximized.
        storage: as of `optuna.create_study`; `study.sqlite` in the folder if None.
        options: others of `optuna.create_study`, such as sampler and pruner.
    """
    _check_metric(sweep, metric)
    Path(folder).mkdir(parents=True, exist_ok=True)
    place = str(sqlite_url(Path(folder) / STORAGE)) if storage is None else storage
    chosen: dict[str, Any] = {"study_name": sweep.name, "load_if_exists": True}
    chosen |= {"direction": "minimize" if is_minimized(metric) else "maximize"} | options
    return optuna.create_study(storage=place, **chosen)


class SweepObjective:
    """The objective of a study over a sweep, for `study.optimize`; a context manager.

    A trial chooses a label of each axis, a rate between the lowest and the highest of the sweep (logarithmically) if
    the labels set none, and the settings in `space`. Its value is the mean of the metric over the best k = `best` of
    `replicates` runs, as for an optimum of the sweep. After each epoch of the first replicate the pruner decides
    whether the trial goes on. A run that diverges prunes its trial.

    Runs are carried out in this process. Finished runs are in the table of the folder, as those of `Laboratory`, and
    a run that is there is not repeated. Several processes, on one machine or on several with a common database, may
    work on a study. The attributes `runs` (hashes) and `outcomes` of a trial show what was run.

    Args:
        sweep: the configurations.
        folder: of the runs in progress and the table.
        metric: as in `sweep_study`.
        space: further settings, each with a distribution of Optuna.
        url: the database of finished runs, as of `Laboratory`.

    Raises:
        SweepError: the metric or a setting does not exist.
    """

    def __init__(
        self,
        sweep: Sweep,
        folder: Path | str,
        *,
        metric: str = "test_accuracy",
        space: Mapping[str, BaseDistribution] | None = None,
        url: str | None = None,
    ) -> None:
        _check_metric(sweep, metric)
        self.sweep, self.metric, self.space = sweep, metric, dict(space or {})
        known = [field.name for field in fields(kind_of(sweep.run).settings_class())]
        for name in self.space:
            if name not in known or name in ("rate", "seed", *sweep.axes):
                hint = did_you_mean(name, known) or " The rate, the seed and the axes are those of the sweep."
                raise SweepError(f"The space has {name!r}, which is not a further setting of these runs.{hint}")
        self._work = Path(folder) / "work"
        self._work.mkdir(parents=True, exist_ok=True)
        self.state = RunState(sqlite_url(Path(folder) / "runs.sqlite") if url is None else url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.state.close()

    def __call__(self, trial: optuna.Trial) -> float:
        """Carry out the runs of a trial, and return its value.

        Raises:
            TrialPruned: the pruner ended the trial, its combination is excluded, or a run diverged.
            RunFailedError: a run raised an error.
        """
        labels = tuple(trial.suggest_categorical(axis, list(values)) for axis, values in self.sweep.axes.items())
        if labels not in self.sweep.combinations:
            raise optuna.TrialPruned("The sweep excludes this combination.")
        grid = self.sweep.rates_of(labels)
        low, high = grid.rates[0], grid.rates[-1]
        rate = trial.suggest_float("rate", low, high, log=True) if low < high else low
        settings = self.sweep.settings(labels) | {"rate": rate}
        settings |= {name: _suggested(trial, name, distribution) for name, distribution in self.space.items()}
        rows: list[RunRow] = []
        for seed in self.sweep.seeds:
            config = kind_of(self.sweep.run).settings_class().from_dict(settings | {"seed": seed})
            rows.append(self._row(config, None if rows else trial))
            trial.set_user_attr("runs", [row.hash for row in rows])
            trial.set_user_attr("outcomes", [row.outcome for row in rows])
            if rows[-1].outcome == "failed":
                raise RunFailedError(f"The run {config.hash[:8]} failed: {rows[-1].error}")
            if rows[-1].outcome == "diverged":
                raise optuna.TrialPruned(f"The run {config.hash[:8]} diverged.")
        sign = -1.0 if is_minimized(self.metric) else 1.0
        values = sorted((sign * float(row.columns()[self.metric]) for row in rows), reverse=True)
        return sign * math.fsum(values[: self.sweep.best]) / self.sweep.best

    def _row(self, config: Settings, trial: optuna.Trial | None) -> RunRow:
        """Return the row of a run, which is carried out if it is missing and pruned by a trial, if one is given."""
        reporter = _Reporter(trial, self.metric)
        stored = self.state.read([config.hash]).get(config.hash)
        if stored is not None:
            reporter.report(stored.epochs())
            return stored
        takes = signature(kind_of(config.KIND).function()).parameters.values()
        listens = any(one.name == "listeners" or one.kind is one.VAR_KEYWORD for one in takes)
        options = {"listeners": [reporter]} if listens else {}
        folder = self._work / config.hash
        row = carry_out_run(config.KIND, config.to_dict(), str(folder.absolute()), options)
        if reporter.pruned is not None:
            # The folder stays: the same run goes on from its checkpoint if it is asked for again.
            raise reporter.pruned
        if not listens:
            reporter.report(row.epochs())
        self.state.add([row])
        return row


class _Reporter(RunListener):
    """Reports the metric of every finished epoch to a trial, and ends the run if the pruner says so."""

    def __init__(self, trial: optuna.Trial | None, metric: str) -> None:
        self._trial, self._metric = trial, metric
        self.pruned: optuna.TrialPruned | None = None

    def on_start(self, start: RunStart) -> None:
        """Report the epochs from before an interruption."""
        self.report([vars(row) for row in start.finished])

    def on_epoch(self, row: Any) -> None:
        """Report an epoch."""
        self.report([vars(row)])
        if self._trial is not None and self._trial.should_prune():
            self.pruned = optuna.TrialPruned(f"Pruned after epoch {row.epoch}.")
            raise self.pruned

    def report(self, epochs: Sequence[Mapping[str, Any]]) -> None:
        """Report finished epochs, for a metric that epochs have."""
        for epoch in epochs:
            value = epoch.get(self._metric)
            if self._trial is not None and value is not None:
                self._trial.report(float(value), int(epoch["epoch"]))


def _suggested(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> Any:
    """Return the value of a setting that a trial chooses."""
    if isinstance(distribution, FloatDistribution):
        return trial.suggest_float(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    if isinstance(distribution, IntDistribution):
        return trial.suggest_int(
            name, distribution.low, distribution.high, step=distribution.step, log=distribution.log
        )
    choices: Any = getattr(distribution, "choices", None)
    if choices is None:
        raise SweepError(f"Expected a distribution of Optuna for {name}, got {distribution!r}.")
    return trial.suggest_categorical(name, choices)


def _check_metric(sweep: Sweep, metric: str) -> None:
    if metric not in sweep.metrics:
        raise SweepError(f"There is no metric {metric!r}; there are {', '.join(sweep.metrics)}.")
