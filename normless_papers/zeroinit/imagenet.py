"""ResNet-50 on ImageNet: batch norm, Fixup and ZeroInit (section 5, tables 4 and 5)."""

from __future__ import annotations

from normless_papers.claims import Check
from normless_papers.de_smith import RESNET_V1, RESNET_V2
from normless_papers.imagenet_comparison import ImageNetComparison, imagenet_table

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


def _table_4(facts: ImageNetComparison) -> list[Check]:
    unnormalized = ("fixup", "zeroinit")
    return [
        *(one for method in unnormalized for one in facts.better_by("batch_norm", method, facts.large)),
        *(one for method in unnormalized for one in facts.better_by("batch_norm", method, facts.large, 1.0)),
        *(one for method in unnormalized for one in facts.within_points(method, "batch_norm", facts.small, 1.0)),
        *facts.differ_by_less("zeroinit_without_dropout", "fixup", facts.small, 0.5),
        *facts.flat("batch_norm", 1.0),
    ]


def _table_5(facts: ImageNetComparison) -> list[Check]:
    return facts.without_identity("zeroinit", "zeroinit_scalar_bias")


imagenet_table("zeroinit/table-4", _table_4, V2, RESNET_V2, "ResNet-50-V2")
imagenet_table("zeroinit/table-5", _table_5, V1, RESNET_V1, "ResNet-50-V1")
