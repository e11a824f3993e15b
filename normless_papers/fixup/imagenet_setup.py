"""The methods that are compared on ImageNet, and how their networks are trained (section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normless.sweeps import SweepResult
from normless_papers.artefact import Context
from normless_papers.claims import Estimate, single_run
from normless_papers.run_summary import failures
from normless_papers.runs import chosen, estimate
from normless_papers.fixup.effort import RATE, Effort

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
        xavier_rates: learning rates of Xavier's weights, which do not train at that of the others.
    """

    resnet_50: Effort
    resnet_101: Effort
    xavier_rates: tuple[float, ...]


def trained(context: Context, effort: Effort, methods: Mapping[str, Mapping[str, Any]]) -> SweepResult:
    """Train one network by some methods, at the default rate unless a method has its own."""
    axis = {name: dict(settings) for name, settings in methods.items()}
    return context.lab.run(effort.sweep(context, "ImageNet", {"method": axis}, rates=(RATE,)))


def over_replicates(table: pd.DataFrame, column: str, method: str, reduction: str, **labels: Any) -> Estimate:
    """A number of one method; of a single run see `known_error`.

    Args:
        table: a row per run.
        column: accuracies or errors in percent.
        method: its label.
        reduction: what is less than the paper's training; empty if nothing is.
        labels: by further columns of the table.
    """
    return known_error(estimate(chosen(table, method=method, **labels), column), reduction)


def known_error(found: Estimate, reduction: str) -> Estimate:
    """With the known deviation of runs on ImageNet, where there is a single one and all is as the paper has it."""
    return found if reduction or found.n > 1 else single_run(found.mean)


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
