"""ZeroInit, section 3: the training protocol of the CIFAR-10 experiments, and the duration of a training step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from normless.residual import residual_map
from normless.state import preserve_random_state
from normless_lab.bench import seconds_in_turns, timer_of, training_step
from normless_lab.plots import inks_of, lines
from normless_lab.sweeps import optima
from normless_lab.train import ImageTask, TrainConfig, rate_multiplier
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Data, Network, Seeds
from normless_papers.claims import Claim, Estimate, Tests, at_scale, decided, larger, over_draws, within
from normless_papers.experiments.de_smith import (
    BATCH_SIZE,
    GHOST_BATCH_SIZE,
    batch_sweeps,
    built_wide_resnet,
    wide_resnet_text,
)
from normless_papers.experiments.effort import Effort
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.plots import OPTIMA_BY_NAME
from normless_papers.published import published_as

ID = "zeroinit/training-protocol"
_NETWORK = wide_resnet_text(16, 1)
# Runs at each learning rate, and how many of the best count.
REPLICATES, BEST = 15, 12


def _protocol_checks(
    facts: tuple[Mapping[str, float], Sequence[float], Sequence[float], Mapping[str, int]],
) -> Tests:
    """Check a run's settings by printed quantity, the rate's multipliers by epoch, the grid, and `_selection`."""
    settings, multipliers, rates, selection = facts
    # Constant, then halved at epochs 100, 110, …, 190.
    expected = [2.0 ** -max(0, epoch // 10 - 9) for epoch in range(200)]
    wrong = sum(actual != due for actual, due in zip(multipliers, expected, strict=False))
    off = max(abs(math.log2(rate) - round(math.log2(rate))) for rate in rates)
    best = "For each metric the optimum is the rate with the best mean over the best 12 of 15 runs."
    errors = {
        best: selection["wrong"],
        "Up to 3 diverged runs at each rate do not change the result.": selection["moved"],
        "Exactly the optima at an end of the grid are flagged.": selection["misflagged"],
    }
    printed, tables = published_as(ID).quantities, selection["tables"]
    return {
        **{
            f"A run is built with the setting {name} = {value:g}.": decided(
                settings[name] == value, built=settings[name], printed=value
            )
            for name, value in printed.items()
        },
        "The learning rate is constant for 100 of 200 epochs and then halved every 10.": decided(
            wrong == 0 and len(multipliers) == len(expected), wrong_epochs=wrong, epochs=len(multipliers)
        ),
        "The learning rates are powers of two.": decided(off == 0, rates=len(rates), largest_distance=off),
        **{claim: decided(count == 0 < tables, errors=count, tables=tables) for claim, count in errors.items()},
    }


@artefact(ID, basis="formula", checks=_protocol_checks)
def protocol(context: Context, *, tables: Seeds[int], effort: Effort) -> Evidence:
    """Read the settings of every run from what the package builds, and compare the selection with brute force."""
    network: dict[str, Any] = {"model": _NETWORK, "ghost": GHOST_BATCH_SIZE}
    (sweep,) = batch_sweeps(context, "protocol", ("batch_norm",), (256,), effort, **network)
    config = sweep.points()[0].config
    assert isinstance(config, TrainConfig)
    multipliers = tuple(rate_multiplier(config.schedule, epoch, config.epochs) for epoch in range(config.epochs))
    optimizer, ghosts = _built(config)
    changes = [epoch for epoch in range(1, config.epochs) if multipliers[epoch] != multipliers[epoch - 1]]
    decays = {group["name"]: group["weight_decay"] for group in optimizer.param_groups}
    settings = {
        "epochs": config.epochs,
        "hold_epochs": changes[0],
        "halve_every": int(np.diff(changes).min()),
        "momentum": optimizer.param_groups[0]["momentum"],
        "l2": decays["weights"],
        "runs": sweep.replicates,
        "best": sweep.best,
        "ghost_batch": ghosts,
    }

    schedule = pd.DataFrame({"epoch": range(config.epochs), "multiplier": np.log2(multipliers)})
    labels: dict[str, Any] = {"title": "Schedule of the learning rate", "y_label": "log₂ of its multiplier"}
    return Evidence(
        measured=pd.DataFrame({"quantity": list(settings), "value": list(settings.values())}),
        facts=(settings, multipliers, sweep.rates.rates, _selection(tables, context.seed)),
        setup={
            "network": _NETWORK,
            "tables": tables,
            "numbers": "read from the sweep, the optimizer and the network that a run of batch size 256 builds",
            "selection": "random tables of 7 rates × 15 runs of two metrics, up to 3 diverged runs at each rate",
        },
        draw=lambda: lines(schedule, x="epoch", y="multiplier", **labels),
    )


def _built(config: TrainConfig) -> tuple[torch.optim.Optimizer, int]:
    """Build a run's optimizer; return it and the number of examples that share batch-norm statistics."""
    task = ImageTask(replace(config, data="digits", data_root=None))
    with preserve_random_state():
        network = task.build_network()
    optimizer = task.build_optimizer(network, residual_map(network, *task.example_inputs()))
    sizes = {
        int(size) for module in network.modules() if isinstance(size := getattr(module, "ghost_size", None), int)
    }
    return optimizer, sizes.pop() if len(sizes) == 1 else -1


def _selection(tables: int, seed: int) -> dict[str, int]:
    """Count how often the selection in random tables of two metrics differs from plain sorting.

    `wrong` counts other optima, means or deviations; `moved`, results that depend on up to three diverged runs of
    each rate; `misflagged`, optima with a wrong flag for an end of the grid.
    """
    generator = np.random.default_rng(seed)
    wrong = moved = misflagged = 0
    for _ in range(tables):
        table = _runs(generator, best_rate=int(generator.integers(7)))
        for metric, sign in (("test_accuracy", 1), ("training_loss", -1)):
            found = optima(table, axes=(), metric=metric, best=BEST).iloc[0]
            rate, mean, deviation = _by_hand(table, metric, sign)
            wrong += not (
                found["rate"] == rate
                and math.isclose(found["mean"], mean, rel_tol=1e-12)
                and math.isclose(found["deviation"], deviation, rel_tol=1e-9)
            )
            misflagged += (found["edge"] != "") != (rate in (table["rate"].min(), table["rate"].max()))
            again = optima(_with_diverged(table, metric, sign), axes=(), metric=metric, best=BEST).iloc[0]
            moved += not (again["rate"] == found["rate"] and again["mean"] == found["mean"])
    return {"tables": tables, "wrong": wrong, "moved": moved, "misflagged": misflagged}


def _runs(generator: np.random.Generator, best_rate: int) -> pd.DataFrame:
    """Draw 15 runs at each of 7 rates, better near one of the rates."""
    rows = [
        {
            "rate": 2.0**index,
            "outcome": "trained",
            "test_accuracy": 0.9 - 0.01 * abs(index - best_rate) + 0.005 * generator.standard_normal(),
            "training_loss": 0.1 + 0.02 * abs(index - best_rate) + 0.005 * generator.random(),
        }
        for index in range(7)
        for _ in range(REPLICATES)
    ]
    return pd.DataFrame(rows)


def _by_hand(table: pd.DataFrame, metric: str, sign: int) -> tuple[float, float, float]:
    """Return rate, mean and sample deviation of the best 12 at the best rate, by plain sorting."""
    results = []
    for rate in sorted(set(table["rate"])):
        values = sorted((sign * value for value in table[table["rate"] == rate][metric]), reverse=True)[:BEST]
        results.append((fmean(values), -rate, stdev(values)))
    mean, rate, deviation = max(results)
    return -rate, sign * mean, deviation


def _with_diverged(table: pd.DataFrame, metric: str, sign: int) -> pd.DataFrame:
    """Return the runs with the worst three of each rate by a metric diverged: at chance, without a loss."""
    places = (sign * table[metric]).groupby(table["rate"]).nsmallest(REPLICATES - BEST).index.get_level_values(1)
    changed = table.copy()
    changed.loc[places, ["test_accuracy", "training_loss"]] = [0.1, math.nan]
    changed.loc[places, "outcome"] = "diverged"
    return changed


SCHEMES = {"batch_norm": "batch_norm", "without_batch_norm": "none"}
TRAINING_IMAGES = 50_000
# "35 to 45 % faster" as time × 0.55 to 0.65, as speed × 1.35 to 1.45 (time × 0.69 to 0.74), or between these.
FASTEST, SLOWEST = 0.55, 1 / 1.35


def _wallclock_checks(facts: tuple[Estimate, str]) -> list[Claim]:
    """Check the ratio of a step's time without batch norm to that with it, given how the set-up differs."""
    ratio, reduction = facts
    claim = (
        f"Without batch normalization an epoch takes {FASTEST:.2f} to {SLOWEST:.2f} of the time with it: roughly "
        "40 % faster, as time × 0.6 or as speed × 1.4."
    )
    less = "A step without batch normalization takes less time than one with it."
    roughly = within(claim, ratio, FASTEST, SLOWEST)
    return [larger(less, Estimate(1.0), ratio), at_scale(roughly, reduction)]


@artefact("zeroinit/wallclock", basis="measurement", checks=_wallclock_checks)
def wallclock(context: Context, *, width: Network[int], side: Data[int], rounds: Seeds[int]) -> Evidence:
    """Measure seconds of a step at batch size 64 without batch norm, relative to one with it, alternating both."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with seeded(context.seed):
        network = built_wide_resnet(16, width)
        images, labels = torch.randn(BATCH_SIZE, 3, side, side), torch.randint(10, (BATCH_SIZE,))
        converted = {name: convert(network, scheme) for name, scheme in SCHEMES.items()}
    order: dict[str, torch.memory_format] = {"memory_format": torch.channels_last}
    images, labels = images.to(device, **order), labels.to(device)  # type: ignore[call-overload]
    steps = {
        name: training_step(net.to(device, **order).train(), images, labels)  # type: ignore[call-overload]
        for name, net in converted.items()
    }
    seconds = seconds_in_turns(steps, rounds, timer_of(device))
    ratio = over_draws(seconds["without_batch_norm"] / seconds["batch_norm"])
    faster = f"{1 - ratio.mean:.0%} less time, {1 / ratio.mean - 1:.0%} more speed"
    rows = [{"quantity": "speed_up", "value": faster, "ratio": ratio.mean}]
    per_epoch = TRAINING_IMAGES // BATCH_SIZE
    rows += [
        {
            "quantity": "step",
            "network": name,
            "mean": 1000 * seconds[name].mean(),
            "deviation": 1000 * seconds[name].std(),
            "median": 1000 * seconds[name].median(),
            "seconds_per_epoch_of_cifar10": per_epoch * seconds[name].median(),
        }
        for name in seconds.columns
    ]
    table = pd.DataFrame(rows)
    whole = width == 4 and side == 32 and device.type == "cuda"
    reduction = "" if whole else f"width {width} at {side}×{side} on a {device.type}, not 16-4 on an accelerator."

    def draw() -> Axes:
        drawn, label = table.dropna(subset=["mean"]).assign(trainable=True), "milliseconds, mean and deviation"
        return OPTIMA_BY_NAME(drawn, y="network", inks=inks_of(SCHEMES), title="A training step", x_label=label)

    return Evidence(
        measured=table,
        facts=(ratio, reduction),
        setup={
            "network": f"Wide-ResNet-16-{width}",
            "images": f"{BATCH_SIZE} of 3×{side}×{side}, random",
            "rounds": rounds,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
        },
        draw=draw,
        reduction=reduction,
    )
