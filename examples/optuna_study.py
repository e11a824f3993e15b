"""Let Optuna choose scheme, rate and weight decay of a network, and end hopeless runs.

Start it again, or in several terminals at once, for further trials of the same study; `optuna-dashboard
sqlite:///normless-study/study.sqlite` shows it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import optuna

from normless_lab.sweeps import RateGrid, RunFailedError, Sweep, SweepObjective, axis_of, sweep_study


def study_of_schemes(folder: Path, trials: int, model: str, epochs: int = 5) -> optuna.Study:
    """Carry out some trials, and return the study with all trials so far."""
    sweep = Sweep(
        name="schemes",
        base={"model": model, "data": "digits", "epochs": epochs, "batch_size": 64, "device": "cpu"},
        axes={"scheme": axis_of("scheme", ["none", "skipinit", "fixup", "batch_norm"])},
        rates=RateGrid.powers(-8, 0),
        replicates=1,
        best=1,
    )
    space = {"weight_decay": optuna.distributions.FloatDistribution(1e-6, 1e-2, log=True)}
    # A run ends if it is below the median of the trials before it after the same epoch.
    study = sweep_study(sweep, folder, pruner=optuna.pruners.MedianPruner(n_startup_trials=4))
    with SweepObjective(sweep, folder, space=space) as objective:
        study.optimize(objective, n_trials=trials, catch=(RunFailedError,))
    return study


def main() -> None:
    """Print the best trial."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("normless-study"))
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--model", default="normless:wide_resnet(depth=16, width=1)")
    arguments = parser.parse_args()
    study = study_of_schemes(arguments.folder, arguments.trials, arguments.model)
    pruned = sum(trial.state.name == "PRUNED" for trial in study.trials)
    print(
        f"{len(study.trials)} trials, {pruned} ended early; the best: {study.best_value:.2%} with {study.best_params}"
    )


if __name__ == "__main__":
    main()
