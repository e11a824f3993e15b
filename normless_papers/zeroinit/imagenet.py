"""ResNet-50 on ImageNet: batch norm, Fixup and ZeroInit (section 5, tables 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence

from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check
from normless_papers.de_smith import RESNET_V1, RESNET_V2
from normless_papers.effort import Effort
from normless_papers.imagenet_comparison import ImageNetComparison, on_imagenet

V2 = {
    "batch_norm": "batch_norm",
    "fixup": "fixup",
    "zeroinit_without_dropout": "zeroinit(dropout=0)",
    "zeroinit": "zeroinit(dropout=0.2)",
}
V1 = {
    "batch_norm": "batch_norm",
    "fixup": "fixup",
    "zeroinit": "zeroinit(dropout=0.2)",
    "zeroinit_scalar_bias": "zeroinit_v1(dropout=0.2)",
}


def _table_4(found: ImageNetComparison) -> list[Check]:
    unnormalized = ("fixup", "zeroinit")
    return [
        *(one for method in unnormalized for one in found.better_by("batch_norm", method, found.large)),
        *(one for method in unnormalized for one in found.better_by("batch_norm", method, found.large, 1.0)),
        *(one for method in unnormalized for one in found.within_points(method, "batch_norm", found.small, 1.0)),
        *found.differ_by_less("zeroinit_without_dropout", "fixup", found.small, 0.5),
        *found.flat("batch_norm", 1.0),
    ]


@artefact("zeroinit/table-4", basis="training", checks=_table_4)
def resnet_v2(context: Context, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
    """With an identity skip path ZeroInit is competitive with batch norm until batches are very large."""
    return on_imagenet(context, V2, batch_sizes, model=RESNET_V2, effort=effort).accuracies("ResNet-50-V2")


def _table_5(found: ImageNetComparison) -> list[Check]:
    return found.without_identity("zeroinit", "zeroinit_scalar_bias")


@artefact("zeroinit/table-5", basis="training", checks=_table_5)
def resnet_v1(context: Context, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
    """Without an identity skip path ZeroInit is worse, unless one scalar bias precedes the final ReLU."""
    return on_imagenet(context, V1, batch_sizes, model=RESNET_V1, effort=effort).accuracies("ResNet-50-V1")
