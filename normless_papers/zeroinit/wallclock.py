"""What batch normalization costs in time: steps of a 16-4 Wide-ResNet with and without it (section 3, Discussion)."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from matplotlib.axes import Axes

from normless.bench import seconds_in_turns, training_step
from normless.plots import inks_of
from normless.sweeps import convert
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, at_scale, larger, over_draws, within
from normless_papers.de_smith import BATCH_SIZE, built_wide_resnet
from normless_papers.plots import OPTIMA_BY_NAME
from normless_papers.seeded_inputs import seeded

SCHEMES = {"batch_norm": "batch_norm", "without_batch_norm": "none"}
TRAINING_IMAGES = 50_000
# 35 to 45 % faster: as time × 0.55 to 0.65, as speed × 1.35 to 1.45 (time × 0.69 to 0.74), or anything between.
FASTEST, SLOWEST = 0.55, 1 / 1.35


@dataclass(frozen=True)
class StepTimes:
    """The time of a step without batch norm over that of one with it, and how the set-up differs from the paper's."""

    ratio: Estimate
    reduction: str


def _wallclock_checks(facts: StepTimes) -> list[Check]:
    claim = (
        f"Without batch normalization an epoch takes {FASTEST:.2f} to {SLOWEST:.2f} of the time with it: roughly "
        "40 % faster, as time × 0.6 or as speed × 1.4."
    )
    less = "A step without batch normalization takes less time than one with it."
    roughly = within(claim, facts.ratio, FASTEST, SLOWEST)
    return [larger(less, Estimate(1.0), facts.ratio), at_scale(roughly, facts.reduction)]


@artefact("zeroinit/wallclock", basis="measurement", checks=_wallclock_checks)
def wallclock(context: Context, *, width: int, side: int, rounds: int) -> Evidence:
    """Seconds of a training step at batch size 64 without batch norm, relative to one with it, taken in turns."""
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
    seconds = seconds_in_turns(steps, rounds)
    ratio = over_draws(seconds["without_batch_norm"] / seconds["batch_norm"])
    table = _table(seconds)
    whole = width == 4 and side == 32 and device.type == "cuda"
    reduction = "" if whole else f"width {width} at {side}×{side} on a {device.type}, not 16-4 on an accelerator."

    def draw() -> Axes:
        drawn, label = table.dropna(subset=["mean"]).assign(trainable=True), "milliseconds, mean and deviation"
        return OPTIMA_BY_NAME(drawn, y="network", inks=inks_of(SCHEMES), title="A training step", x_label=label)

    return Evidence(
        measured=table,
        facts=StepTimes(ratio, reduction),
        setup={
            "network": f"Wide-ResNet-16-{width}",
            "images": f"{BATCH_SIZE} of 3×{side}×{side}, random",
            "rounds": rounds,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
        },
        on=("quantity",),
        draw=draw,
        remarks=(
            "Steps on one resident batch, so that neither loading nor augmentation counts; the ratio is the mean "
            "over rounds of a step without batch norm to the one with it just before.",
        ),
        reduction=reduction,
    )


def _table(seconds: pd.DataFrame) -> pd.DataFrame:
    """The speed-up as it is printed, and milliseconds of a step and seconds of an epoch of each network."""
    ratio = seconds["without_batch_norm"] / seconds["batch_norm"]
    faster = f"{1 - ratio.mean():.0%} less time, {1 / ratio.mean() - 1:.0%} more speed"
    rows = [{"quantity": "speed_up", "value": faster, "ratio": ratio.mean()}]
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
    return pd.DataFrame(rows)
