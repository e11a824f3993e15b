"""ResNet-50 on ImageNet: batch norm, Fixup and ZeroInit (section 5, tables 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence

from normless.papers.artefact import Context, artefact
from normless.papers.evidence import Evidence
from normless.papers.imagenet import compared, imagenet_evidence
from normless.papers.networks import RESNET_V1, RESNET_V2
from normless.papers.protocol import Effort


@artefact("zeroinit/table-4", basis="training")
def resnet_v2(context: Context, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
    """With an identity skip path ZeroInit is ahead of batch norm until batches are very large."""
    methods = {
        "batch_norm": "batch_norm",
        "fixup": "fixup",
        "zeroinit_without_dropout": "zeroinit(dropout=0)",
        "zeroinit": "zeroinit(dropout=0.2)",
    }
    found = compared(context, methods, batch_sizes, model=RESNET_V2, effort=effort)
    checks = [
        *found.above("zeroinit", "batch_norm", found.small),
        *found.above("batch_norm", "zeroinit", [found.large], by=2.0),
        *found.alike("zeroinit_without_dropout", "fixup", found.small, within=0.5),
        *found.flat("batch_norm", within=0.5),
    ]
    return imagenet_evidence(found, checks, title="ResNet-50-V2")


@artefact("zeroinit/table-5", basis="training")
def resnet_v1(context: Context, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
    """Without an identity skip path ZeroInit falls behind, unless one scalar bias precedes the final ReLU."""
    methods = {
        "batch_norm": "batch_norm",
        "fixup": "fixup",
        "zeroinit": "zeroinit(dropout=0.2)",
        "zeroinit_scalar_bias": "zeroinit_v1(dropout=0.2)",
    }
    found = compared(context, methods, batch_sizes, model=RESNET_V1, effort=effort)
    every = [*found.small, found.large]
    checks = [
        *found.above("fixup", "zeroinit", every, by=3.5),
        *found.above("batch_norm", "zeroinit", every, by=5.0),
        *found.above("zeroinit_scalar_bias", "fixup", found.small),
        *found.above("fixup", "zeroinit_scalar_bias", [found.large]),
    ]
    return imagenet_evidence(found, checks, title="ResNet-50-V1")
