"""ResNets on ImageNet: test errors with Mixup and without (table 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from normless.lab.laboratory import SweepResult
from normless.papers.artefact import Context, artefact
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.finals import final_table, setup_of, summary, with_published
from normless.papers.fixup.effort import Effort
from normless.papers.fixup.imagenet_setup import (
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
from normless.papers.verdict import Check, Estimate, larger
from normless.report.beside_published import beside_published


@artefact("fixup/table-2", basis="training")
def test_errors(context: Context, *, networks: Networks) -> Evidence:
    """Table 2: Fixup improves on Xavier's weights; with Mixup it reaches group norm with Mixup."""
    methods = {
        "resnet_50": {
            "batch_norm (Goyal et al. 2017)": BATCH_NORM,
            "batch_norm + mixup (Zhang et al. 2017)": BATCH_NORM_MIXUP,
            "group_norm + mixup": GROUP_NORM_MIXUP,
            "xavier_init (Shang et al. 2017)": {**XAVIER, "rate": networks.xavier_rate},
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
    efforts = {"resnet_50": networks.resnet_50, "resnet_101": networks.resnet_101}
    results = {name: trained(context, effort, methods[name]) for name, effort in efforts.items()}
    table = pd.concat([final_table(result).assign(model=name) for name, result in results.items()], ignore_index=True)
    first = {name: over_replicates(table, "test_error", name, model="resnet_50") for name in methods["resnet_50"]}
    second = {name: over_replicates(table, "test_error", name, model="resnet_101") for name in methods["resnet_101"]}
    checks = [
        larger(
            "Of ResNet-50 Fixup has a lower test error than Xavier's weights.",
            first["xavier_init (Shang et al. 2017)"],
            first["fixup"],
        ),
        larger(
            "Of ResNet-50 Fixup's test error is above batch norm's.",
            first["fixup"],
            first["batch_norm (Goyal et al. 2017)"],
        ),
        larger("Of ResNet-50 Mixup lowers Fixup's test error.", first["fixup"], first["fixup + mixup"]),
        _within("Of ResNet-50", first),
        _within("Of ResNet-101", second),
    ]
    columns = ("model", "method")
    measured = summary(table, columns, ("test_error", "training_accuracy"))
    return Evidence(
        measured,
        qualified(checks, networks.resnet_50.reduced),
        _setup(context, results, efforts),
        on=columns,
        draw=lambda: beside_published(
            with_published("fixup/table-2", measured, columns, "test_error"),
            title="Test errors with and without Mixup",
            across="top-1 test error (%)",
        ),
        remarks=remarks_on(context, networks.resnet_50, *results.values()),
    )


def _within(whose: str, errors: Mapping[str, Estimate]) -> Check:
    """Fixup is at most half a point worse than group norm, both with Mixup; the paper has 0.1 and 0."""
    return larger(
        f"{whose} Fixup with Mixup is at most 0.5 points above group norm with Mixup.",
        errors["group_norm + mixup"],
        errors["fixup + mixup"],
        by=-0.5,
    )


def _setup(context: Context, results: Mapping[str, SweepResult], efforts: Mapping[str, Effort]) -> dict[str, Any]:
    setup = setup_of(context.lab, *results.values())
    setup["model"] = {name: effort.model for name, effort in efforts.items()}
    setup["epochs"] = {name: effort.epochs for name, effort in efforts.items()}
    setup["method"] = {name: dict(result.sweep.axes["method"]) for name, result in results.items()}
    return setup
