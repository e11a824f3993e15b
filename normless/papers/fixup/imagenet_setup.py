"""The methods that are compared on ImageNet, and how their networks are trained (section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normless.lab.laboratory import SweepResult
from normless.papers.artefact import Context
from normless.papers.finals import chosen, estimate, failures
from normless.papers.fixup.effort import RATE, Effort
from normless.papers.verdict import Estimate

_DEFAULTS: Mapping[str, Any] = {"schedule": "step", "weight_decay": 1e-4}
_REDUCED = "CIFAR ResNets after some epochs on few small images are not the paper's ResNets on ImageNet."

BATCH_NORM: Mapping[str, Any] = {"scheme": "batch_norm", "mixup": 0.0}
BATCH_NORM_MIXUP: Mapping[str, Any] = {"scheme": "batch_norm", "mixup": 0.2}
GROUP_NORM: Mapping[str, Any] = {"scheme": "group_norm", "mixup": 0.0}
GROUP_NORM_MIXUP: Mapping[str, Any] = {"scheme": "group_norm", "mixup": 0.1}
XAVIER: Mapping[str, Any] = {"scheme": "xavier", "mixup": 0.0}
FIXUP: Mapping[str, Any] = {"scheme": "fixup", "mixup": 0.0}
FIXUP_MIXUP_EQUAL: Mapping[str, Any] = {"scheme": "fixup", "mixup": 0.7}
FIXUP_MIXUP: Mapping[str, Any] = {**FIXUP_MIXUP_EQUAL, "scalar_rate_scale": 0.1}


@dataclass(frozen=True)
class Networks:
    """The two networks of the table, each with its training.

    Attributes:
        resnet_50: for 100 epochs in the paper.
        resnet_101: for 200.
        xavier_rate: learning rate of Xavier's weights, which do not train at that of the others.
    """

    resnet_50: Effort
    resnet_101: Effort
    xavier_rate: float


def _effort(model: str, data: str, epochs: int, **changes: Any) -> Effort:
    return Effort(f"normless:{model}", data, epochs, settings=_DEFAULTS, **changes)


def _on_digits(depth: int) -> Effort:
    return _effort(f"resnet_cifar(depth={depth})", "digits", 3, batch_size=32, replicates=3, reduced=_REDUCED)


def _on_small_images(depth: int) -> Effort:
    return _effort(
        f"resnet_cifar(depth={depth})",
        "cifar10(side=8, train=5000, test=2000)",
        12,
        replicates=2,
        crop=1,
        reduced=_REDUCED,
    )


def trained(context: Context, effort: Effort, methods: Mapping[str, Mapping[str, Any]]) -> SweepResult:
    """Train one network by some methods, at the default rate unless a method has its own."""
    axis = {name: dict(settings) for name, settings in methods.items()}
    return context.lab.run(effort.sweep(context, "ImageNet", {"method": axis}, rates=(RATE,)))


def over_replicates(table: pd.DataFrame, column: str, method: str, **labels: Any) -> Estimate:
    """A number of one method; further labels are columns of the table."""
    return estimate(chosen(table, method=method, **labels), column)


def remarks_on(context: Context, effort: Effort, *results: SweepResult) -> tuple[str, ...]:
    """What a reader of these results must know."""
    place = context.data_or(effort.data)
    elsewhere = () if place == "image_folder" else (f"Where the paper has ImageNet, this was trained on {place}.",)
    return (
        "Rates are divided by 10 at half and three quarters of the training; the paper only says default "
        "hyperparameters. Fixup with Mixup has a tenth of the rate for scalars.",
        *elsewhere,
        *failures(*results),
    )
