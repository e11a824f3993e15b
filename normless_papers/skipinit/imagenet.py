"""ResNet-50-V1 on ImageNet: batch norm, Fixup, Regularized SkipInit and a scalar bias (appendix F, table 7)."""

from __future__ import annotations

from collections.abc import Sequence

from normless_papers.artefact import Context, artefact
from normless_papers.evidence import Evidence
from normless_papers.imagenet import Comparison, compared, imagenet_evidence
from normless_papers.networks import RESNET_V1
from normless_papers.protocol import Effort
from normless_papers.verdict import Check


def _table_7(found: Comparison) -> list[Check]:
    return found.without_identity("regularized_skipinit", "regularized_skipinit_scalar_bias")


@artefact("skipinit/table-7", basis="training", checks=_table_7)
def resnet_v1(context: Context, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
    """The runs of zeroinit/table-5 by other names, its numbers rounded."""
    methods = {
        "batch_norm": "batch_norm",
        "fixup": "fixup",
        "regularized_skipinit": "zeroinit(dropout=0.2)",
        "regularized_skipinit_scalar_bias": "zeroinit_v1(dropout=0.2)",
    }
    found = compared(context, methods, batch_sizes, model=RESNET_V1, effort=effort)
    return imagenet_evidence(found, title="ResNet-50-V1")
