"""Regularized SkipInit, which is ZeroInit by another name."""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from normless.sweeps import convert
from normless_papers.agreement import Agreement, agreement, agreement_table
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.bias_and_dropout import RegularizedFacts, biases, dropped_share
from normless_papers.claims import Check
from normless_papers.de_smith import built_wide_resnet, scheme_of
from normless_papers.multiplier_agreements import blocks_at_start, placement
from normless_papers.plots import AGREEMENT
from normless_papers.published import published_as
from normless_papers.seeded_inputs import seeded
from normless_papers.skipinit.scalar_bias import METHODS as IMAGENET_METHODS

ID = "skipinit/regularized-skipinit"
# What the tables of each data set train by this name.
SCHEMES = {
    "cifar100": scheme_of("regularized_skipinit"),
    "imagenet": IMAGENET_METHODS["regularized_skipinit"],
}


def _regularized_checks(found: RegularizedFacts) -> list[Check]:
    printed = {row["quantity"]: row["value"] for row in published_as(ID).rows}
    return found.checks(printed["drop_probability"])


@artefact(ID, basis="formula", checks=_regularized_checks)
def regularized(context: Context, *, depth: int, width: int, draws: int) -> Evidence:
    """α = 0, biases on all convolutions and the classifier, dropout before that; ZeroInit by another name."""
    with seeded(context.seed):
        original, images = built_wide_resnet(depth, width), torch.randn(4, 3, 16, 16)
        network = convert(original, "regularized_skipinit")
        layers, with_bias, zero = biases(original, network)
        agreements = (
            zero,
            _differs_by_dropout(original, network, images),
            *blocks_at_start(network, images),
            *placement(convert(original, "regularized_skipinit(dropout=0)"), images),
        )
        shares = {name: dropped_share(original, scheme, draws) for name, scheme in SCHEMES.items()}
    published = pd.DataFrame(
        [
            *({"quantity": "drop_probability", "of": name, "value": one.mean} for name, one in shares.items()),
            {"quantity": "keep_prob_in_code", "of": "imagenet", "value": 1 - shares["imagenet"].mean},
        ]
    )
    table = agreement_table(agreements)
    return Evidence(
        measured=pd.concat([published, table], ignore_index=True),
        facts=RegularizedFacts(layers, with_bias, agreements, shares),
        setup={
            "network": f"Wide-ResNet-{depth}-{width}",
            "dropout of": SCHEMES,
            "draws of dropout": draws,
        },
        on=("quantity",),
        draw=lambda: AGREEMENT(table),
    )


def _differs_by_dropout(original: nn.Module, network: nn.Module, images: torch.Tensor) -> Agreement:
    """At test time, where nothing is dropped, it is SkipInit."""
    with torch.no_grad():
        ours, plain = network.eval()(images), convert(original, "skipinit").eval()(images)
    return agreement("Without dropout the logits are those of SkipInit with α = 0", ours, plain)
