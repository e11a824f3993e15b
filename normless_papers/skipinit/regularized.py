"""Regularized SkipInit, which is ZeroInit by another name."""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor, nn

from normless.sweeps import convert
from normless_papers.agreement import Agreement, agreement, agreement_table
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.bias_and_dropout import RegularizedFacts, regularized_facts
from normless_papers.claims import Check
from normless_papers.de_smith import scheme_of
from normless_papers.plots import AGREEMENT
from normless_papers.published import published_as
from normless_papers.seeded_inputs import seeded
from normless_papers.skipinit.scalar_bias import METHODS as IMAGENET_METHODS

ID = "skipinit/regularized-skipinit"
# The scheme that the tables of each data set train by this name.
SCHEMES = {
    "cifar100": scheme_of("regularized_skipinit"),
    "imagenet": IMAGENET_METHODS["regularized_skipinit"],
}


def _regularized_checks(facts: RegularizedFacts) -> list[Check]:
    return facts.checks(published_as(ID).quantities["drop_probability"])


@artefact(ID, basis="formula", checks=_regularized_checks)
def regularized(context: Context, *, depth: int, width: int, draws: int) -> Evidence:
    """α = 0, biases on all convolutions and the classifier, dropout before that; ZeroInit by another name."""
    with seeded(context.seed):
        facts = regularized_facts("regularized_skipinit", depth, width, draws, SCHEMES, _differs_by_dropout)
    rows = [("drop_probability", name, one.mean) for name, one in facts.shares.items()]
    rows.append(("keep_prob_in_code", "imagenet", 1 - facts.shares["imagenet"].mean))
    published = pd.DataFrame(rows, columns=["quantity", "of", "value"])
    table = agreement_table(facts.agreements)
    return Evidence(
        measured=pd.concat([published, table], ignore_index=True),
        facts=facts,
        setup={"network": f"Wide-ResNet-{depth}-{width}", "dropout of": SCHEMES, "draws of dropout": draws},
        on=("quantity",),
        draw=lambda: AGREEMENT(table),
    )


def _differs_by_dropout(original: nn.Module, network: nn.Module, images: Tensor) -> Agreement:
    """The network is SkipInit at test time, where nothing is dropped."""
    with torch.no_grad():
        ours, plain = network.eval()(images), convert(original, "skipinit").eval()(images)
    return agreement("Without dropout the logits are those of SkipInit with α = 0", ours, plain)
