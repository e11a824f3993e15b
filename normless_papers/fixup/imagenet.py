"""ResNets on ImageNet: test errors with Mixup and without (table 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from normless.sweeps import SweepResult
from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.fixup.effort import Effort, reduction_of
from normless_papers.fixup.imagenet_setup import (
    BATCH_NORM,
    BATCH_NORM_MIXUP,
    FIXUP,
    FIXUP_MIXUP,
    GROUP_NORM_MIXUP,
    XAVIER,
    Networks,
    over_replicates,
    remarks_on,
    trained,
)
from normless_papers.plots import BESIDE_PUBLISHED
from normless_papers.run_summary import chosen, final_table, setup_of, summary, with_published
from normless_papers.verdict import Check, Estimate, at_scale, larger

METHODS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "resnet_50": {
        "batch_norm (Goyal et al. 2017)": BATCH_NORM,
        "batch_norm + mixup (Zhang et al. 2017)": BATCH_NORM_MIXUP,
        "group_norm + mixup": GROUP_NORM_MIXUP,
        "fixup": FIXUP,
        "fixup + mixup": FIXUP_MIXUP,
    },
    "resnet_101": {
        "batch_norm (Zhang et al. 2017)": BATCH_NORM,
        "batch_norm + mixup (Zhang et al. 2017)": BATCH_NORM_MIXUP,
        "group_norm + mixup": GROUP_NORM_MIXUP,
        "fixup + mixup": FIXUP_MIXUP,
    },
}
XAVIER_INIT = "xavier_init (Shang et al. 2017)"


@dataclass(frozen=True)
class Errors:
    """Table 2: test errors in percent by method.

    Attributes:
        resnet_50: of the one network.
        resnet_101: of the other.
        reduction: what is less than the paper's training; empty if nothing is.
    """

    resnet_50: Mapping[str, Estimate]
    resnet_101: Mapping[str, Estimate]
    reduction: str


def _checks(found: Errors) -> list[Check]:
    errors = found.resnet_50
    names = {"ResNet-50": found.resnet_50, "ResNet-101": found.resnet_101}
    return [
        larger(
            "Of ResNet-50 Fixup has a lower test error than Xavier's weights.", errors[XAVIER_INIT], errors["fixup"]
        ),
        larger(
            "Of ResNet-50 Fixup's test error is above batch norm's.",
            errors["fixup"],
            errors["batch_norm (Goyal et al. 2017)"],
        ),
        larger("Of ResNet-50 Mixup lowers Fixup's test error.", errors["fixup"], errors["fixup + mixup"]),
        *(
            # On par: the paper has them 0.1 points apart, and 0.
            at_scale(
                larger(
                    f"Of {name} Fixup with Mixup is at most 0.5 points above group norm with Mixup.",
                    own["group_norm + mixup"],
                    own["fixup + mixup"],
                    by=-0.5,
                ),
                found.reduction,
            )
            for name, own in names.items()
        ),
    ]


@artefact("fixup/table-2", basis="training", checks=_checks)
def test_errors(context: Context, *, networks: Networks) -> Evidence:
    """Table 2: Fixup improves on Xavier's weights; with Mixup it reaches group norm with Mixup."""
    efforts = {"resnet_50": networks.resnet_50, "resnet_101": networks.resnet_101}
    results = {name: trained(context, effort, METHODS[name]) for name, effort in efforts.items()}
    small = context.lab.run(
        networks.resnet_50.sweep(
            context, "ImageNet, Xavier", {"method": {XAVIER_INIT: dict(XAVIER)}}, rates=networks.xavier_rates
        )
    )
    xavier = chosen(final_table(small), rate=small.optima("test_accuracy").iloc[0]["rate"])
    tables = [final_table(result).assign(model=name) for name, result in results.items()]
    table = pd.concat([*tables, xavier.assign(model="resnet_50")], ignore_index=True)
    reduction = reduction_of(context, networks.resnet_50)

    def errors(model: str, *names: str) -> dict[str, Estimate]:
        return {name: over_replicates(table, "test_error", name, reduction, model=model) for name in names}

    columns = ("model", "method")
    measured = summary(table, (*columns, "rate"), ("test_error", "training_accuracy"))
    return Evidence(
        measured,
        Errors(
            errors("resnet_50", *METHODS["resnet_50"], XAVIER_INIT),
            errors("resnet_101", *METHODS["resnet_101"]),
            reduction,
        ),
        _setup(context, {**results, "Xavier's weights": small}, efforts),
        on=columns,
        draw=lambda: BESIDE_PUBLISHED(
            with_published("fixup/table-2", measured, columns, "test_error"),
            title="Test errors with and without Mixup",
            x_label="top-1 test error (%); diamonds: published",
        ),
        remarks=(
            "Of Xavier's weights the best by test accuracy of the rates "
            f"{', '.join(f'{rate:g}' for rate in networks.xavier_rates)} is shown.",
            *remarks_on(context, networks.resnet_50, *results.values(), small),
        ),
        reduction=reduction,
    )


def _setup(context: Context, results: Mapping[str, SweepResult], efforts: Mapping[str, Effort]) -> dict[str, Any]:
    setup = setup_of(context.lab, *results.values())
    setup["model"] = {name: effort.model for name, effort in efforts.items()}
    setup["epochs"] = {name: effort.epochs for name, effort in efforts.items()}
    setup["method"] = {name: dict(result.sweep.axes["method"]) for name, result in results.items()}
    return setup
