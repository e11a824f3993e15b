"""ResNet-50 on ImageNet: batch norm, Fixup and ZeroInit (section 5, tables 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence

from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.imagenet import Comparison, compared, imagenet_evidence
from normless_papers.networks import RESNET_V1, RESNET_V2
from normless_papers.protocol import Effort
from normless_papers.verdict import Check


def _table_4(found: Comparison) -> list[Check]:
    unnormalized = ("fixup", "zeroinit")
    return [
        *(one for method in unnormalized for one in found.above("batch_norm", method, [found.large])),
        *(one for method in unnormalized for one in found.above("batch_norm", method, [found.large], by=1.0)),
        *(one for method in unnormalized for one in found.competitive(method, "batch_norm", found.small, within=1.0)),
        *found.alike("zeroinit_without_dropout", "fixup", found.small, apart=0.5),
        *found.flat("batch_norm", within=1.0),
    ]


@artefact("zeroinit/table-4", basis="training", checks=_table_4)
def resnet_v2(context: Context, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
    """With an identity skip path ZeroInit keeps up with batch norm until batches are very large."""
    methods = {
        "batch_norm": "batch_norm",
        "fixup": "fixup",
        "zeroinit_without_dropout": "zeroinit(dropout=0)",
        "zeroinit": "zeroinit(dropout=0.2)",
    }
    found = compared(context, methods, batch_sizes, model=RESNET_V2, effort=effort)
    return imagenet_evidence(found, title="ResNet-50-V2")


def _table_5(found: Comparison) -> list[Check]:
    return found.without_identity("zeroinit", "zeroinit_scalar_bias")


@artefact("zeroinit/table-5", basis="training", checks=_table_5)
def resnet_v1(context: Context, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
    """Without an identity skip path ZeroInit falls behind, unless one scalar bias precedes the final ReLU."""
    methods = {
        "batch_norm": "batch_norm",
        "fixup": "fixup",
        "zeroinit": "zeroinit(dropout=0.2)",
        "zeroinit_scalar_bias": "zeroinit_v1(dropout=0.2)",
    }
    found = compared(context, methods, batch_sizes, model=RESNET_V1, effort=effort)
    return imagenet_evidence(found, title="ResNet-50-V1")
