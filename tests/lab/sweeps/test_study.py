"""Studies of Optuna over a sweep: what a trial runs, what the pruner sees, and what is left for the next process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from lab_helpers import TinyConfig, TinyResult, tiny, tiny_result, tiny_sweep

from normless_lab.sweeps import Kind, RateGrid, Sweep
from normless_lab.train import RunListener, RunStart

optuna = pytest.importorskip("optuna", reason="optuna is not installed: pip install 'normless[cluster]'")

from normless_lab.sweeps import SweepObjective, sweep_study  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.WARNING)


class TalkingConfig(TinyConfig):
    KIND: ClassVar[str] = "test_study:TALKING"


def talking(config: TinyConfig, directory: Path, listeners: Sequence[RunListener] = ()) -> TinyResult:
    """A run that tells its listeners of every epoch, and goes on after the last one."""
    record = directory / "epochs.txt"
    done = len(record.read_text()) if record.exists() else 0
    rows = tiny_result(config).epochs
    for listener in listeners:
        listener.on_start(RunStart(config, 1, rows[:done]))
    for row in rows[done:]:
        with record.open("a") as file:
            file.write("x")
        for listener in listeners:
            listener.on_epoch(row)
    return tiny(config, directory)


TALKING = Kind("test_study:TalkingConfig", "test_study:talking", "lab_helpers:TinyResult")


def one_axis(**changes: Any) -> Sweep:
    return tiny_sweep(
        **{"replicates": 1, "best": 1, "run": TalkingConfig.KIND, "rates": RateGrid.powers(-6, 2)} | changes
    )


def optimized(sweep: Sweep, folder: Path, trials: int) -> Any:
    study = sweep_study(sweep, folder, sampler=optuna.samplers.TPESampler(seed=0))
    with SweepObjective(sweep, folder) as objective:
        study.optimize(objective, n_trials=trials)
    return study


def test_a_study_finds_the_best_rate_and_its_storage_outlives_it(tmp_path: Path) -> None:
    sweep = one_axis()
    study = optimized(sweep, tmp_path, 12)
    assert study.direction.name == "MAXIMIZE"
    assert study.best_params["rate"] == pytest.approx(0.25, rel=0.5)
    assert {trial.params["scheme"] for trial in study.trials} == {"none", "fixup"}
    # The value is that of the run's row, whose hash is with the trial.
    with SweepObjective(sweep, tmp_path) as objective:
        (name,) = study.best_trial.user_attrs["runs"]
        row = objective.state.read([name])[name]
    assert row.columns()["test_accuracy"] == study.best_value
    # What a dashboard, or the next process, opens.
    url = f"sqlite:///{tmp_path / 'study.sqlite'}"
    again = optuna.load_study(study_name="tiny", storage=url)
    assert [trial.value for trial in again.trials] == [trial.value for trial in study.trials]
    assert again.trials[0].intermediate_values.keys() == {1, 2}
    assert len(optimized(sweep, tmp_path, 1).trials) == 13


def test_hopeless_runs_end_early_and_go_on_if_they_are_asked_for_again(tmp_path: Path) -> None:
    sweep = one_axis(base={"epochs": 5})
    study = sweep_study(sweep, tmp_path, pruner=optuna.pruners.ThresholdPruner(lower=0.5))
    study.enqueue_trial({"scheme": "none", "rate": 1.0})
    study.enqueue_trial({"scheme": "none", "rate": 0.25})
    with SweepObjective(sweep, tmp_path) as objective:
        study.optimize(objective, n_trials=2)
        hopeless, good = study.trials
        assert (hopeless.state.name, list(hopeless.intermediate_values)) == ("PRUNED", [1])
        assert (good.state.name, good.value, list(good.intermediate_values)) == ("COMPLETE", 1.0, [1, 2, 3, 4, 5])
        # Only finished runs are in the table; the checkpoints of a pruned one stay.
        assert len(objective.state.hashes()) == 1
        other = sweep_study(sweep, tmp_path, study_name="other", pruner=optuna.pruners.NopPruner())
        other.enqueue_trial(hopeless.params)
        other.optimize(objective, n_trials=1)
    (finished,) = other.trials
    assert (finished.state.name, finished.value) == ("COMPLETE", pytest.approx(0.25))
    # Epochs from before are reported too.
    assert list(finished.intermediate_values) == [1, 2, 3, 4, 5]


def test_a_run_of_a_sweep_is_not_repeated_and_replicates_are_averaged(tmp_path: Path) -> None:
    # Runs without listeners; seeds lower the accuracy by a thousandth each.
    sweep = tiny_sweep(replicates=3, best=2)
    study = sweep_study(sweep, tmp_path)
    for _ in range(2):
        study.enqueue_trial({"scheme": "fixup", "rate": 0.25})
    with SweepObjective(sweep, tmp_path) as objective:
        study.optimize(objective, n_trials=2)
        rows = objective.state.read(study.trials[1].user_attrs["runs"])
    assert [trial.value for trial in study.trials] == [pytest.approx(1 - 0.5e-3)] * 2
    assert study.trials[0].user_attrs == study.trials[1].user_attrs
    # The number is the time at which a run was carried out.
    assert len({row.result["seconds_per_epoch"] for row in rows.values()}) == 3
    assert [list(trial.intermediate_values) for trial in study.trials] == [[1, 2]] * 2
