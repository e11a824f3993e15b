"""Regularized SkipInit, which is ZeroInit by another name."""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor, nn

from normless.papers.agreement import Agreement, agreement, agreement_table
from normless.papers.artefact import Context, artefact
from normless.papers.as_printed import convert
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.multipliers import blocks_at_start, placement
from normless.papers.networks import built_wide_resnet
from normless.papers.regularization import biases, drop_check, dropped_share
from normless.papers.verdict import check
from normless.report.agreement import agreement_of_quantities
from normless.schemes import parse_scheme

# Drop probabilities of the papers by data set.
DROPS = {"cifar100": 0.6, "imagenet": 0.2}


@artefact("skipinit/regularized-skipinit", basis="formula")
def regularized(context: Context, *, depth: int, width: int, draws: int) -> Evidence:
    """α = 0, biases on all convolutions and the classifier, dropout before that; ZeroInit by another name."""
    with seeded(context.seed):
        original, images = built_wide_resnet(depth, width), torch.randn(4, 3, 16, 16)
        network = convert(original, "regularized_skipinit")
        biased, start = biases(original, network)
        agreements = [
            start,
            _differs_by_dropout(original, network, images),
            *blocks_at_start(network, images),
            *placement(convert(original, "regularized_skipinit(dropout=0)"), images),
        ]
        rates = {name: dropped_share(original, drop, draws) for name, drop in DROPS.items()}
    same = parse_scheme("regularized_skipinit").edits == parse_scheme("zeroinit").edits
    published = pd.DataFrame(
        [
            *({"quantity": "drop_probability", "of": name, "value": float(rates[name].mean())} for name in DROPS),
            {"quantity": "keep_prob_in_code", "of": "imagenet", "value": float(1 - rates["imagenet"].mean())},
        ]
    )
    table = agreement_table(agreements)
    return Evidence(
        measured=pd.concat([published, table], ignore_index=True),
        checks=(
            biased,
            *(one.check() for one in agreements),
            *(drop_check(name, drop, rates[name]) for name, drop in DROPS.items()),
            check(
                "The edits are those of ZeroInit, so that its ablations are this method's.", same, same=float(same)
            ),
        ),
        setup={"network": f"Wide-ResNet-{depth}-{width}", "draws of dropout": draws, "seed": context.seed},
        on=("quantity",),
        draw=lambda: agreement_of_quantities(table),
    )


def _differs_by_dropout(original: nn.Module, network: nn.Module, images: Tensor) -> Agreement:
    """At test time, where nothing is dropped, it is SkipInit."""
    with torch.no_grad():
        ours, plain = network.eval()(images), convert(original, "skipinit").eval()(images)
    return agreement("Without dropout the logits are those of SkipInit with α = 0", ours, plain)
