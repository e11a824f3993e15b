"""ResNet-50-V1 on ImageNet: batch norm, Fixup, Regularized SkipInit and a scalar bias (appendix F, table 7)."""

from __future__ import annotations

from collections.abc import Sequence

from normless.papers.artefact import Context, artefact
from normless.papers.evidence import Evidence
from normless.papers.imagenet import compared, imagenet_evidence
from normless.papers.networks import RESNET_V1
from normless.papers.protocol import Effort


@artefact("skipinit/table-7", basis="training")
def resnet_v1(context: Context, *, batch_sizes: Sequence[int], effort: Effort) -> Evidence:
    """The runs of zeroinit/table-5 by other names, its numbers rounded."""
    methods = {
        "batch_norm": "batch_norm",
        "fixup": "fixup",
        "regularized_skipinit": "zeroinit(dropout=0.2)",
        "regularized_skipinit_scalar_bias": "zeroinit_v1(dropout=0.2)",
    }
    found = compared(context, methods, batch_sizes, model=RESNET_V1, effort=effort)
    every = [*found.small, found.large]
    checks = [
        *found.flat("batch_norm", within=0.5),
        *found.above("batch_norm", "fixup", found.small[:1], by=0.5),
        *found.above("batch_norm", "fixup", [found.large], by=2.0),
        *found.above("fixup", "regularized_skipinit", every, by=3.5),
        *found.above("regularized_skipinit_scalar_bias", "fixup", found.small),
        *found.above("fixup", "regularized_skipinit_scalar_bias", [found.large]),
    ]
    return imagenet_evidence(found, checks, title="ResNet-50-V1")
