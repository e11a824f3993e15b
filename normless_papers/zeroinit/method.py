"""ZeroInit: a zero multiplier at every branch end, zero biases, dropout before the classifier; and that it trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch

from normless.sweeps import convert
from normless_papers.agreement import agreement, agreement_table
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.bias_and_dropout import RegularizedFacts, biases, dropped_share
from normless_papers.claims import Check, Estimate, larger
from normless_papers.comparison import Comparison
from normless_papers.de_smith import built_wide_resnet, over_depths, scheme_of
from normless_papers.effort import Effort
from normless_papers.multiplier_agreements import blocks_at_start, placement
from normless_papers.published import published_as
from normless_papers.seeded_inputs import seeded

ID = "zeroinit/zeroinit"
# What the paper's experiments train where it says nothing of dropout, and on ImageNet, by the printed quantity.
SCHEMES = {
    "default_drop_probability": scheme_of("zeroinit"),
    "imagenet_drop_probability": "zeroinit(dropout=0.2)",
}
DEEPEST = 1000


@dataclass(frozen=True)
class ZeroInitFacts:
    """The algorithm compared with its definition, and batch norm and ZeroInit at several depths."""

    algorithm: RegularizedFacts
    runs: Comparison


def _zeroinit_checks(found: ZeroInitFacts) -> list[Check]:
    printed = {row["quantity"]: row["value"] for row in published_as(ID).rows}
    trains = [
        found.runs.trains(f"{depth} layers train without normalization, as with batch norm.", "zeroinit", depth)
        for depth in sorted({*found.runs.sizes, DEEPEST})
    ]
    exceeds = larger(
        f"{DEEPEST} layers of width 2 exceed 94 % on CIFAR-10 in 200 epochs.",
        found.runs.reached("zeroinit", DEEPEST),
        Estimate(94.0),
    )
    return [*found.algorithm.checks(printed), *trains, found.runs.as_printed(exceeds)]


@artefact(ID, basis="training", checks=_zeroinit_checks)
def zeroinit(
    context: Context, *, depth: int, draws: int, depths: Sequence[int], width: int, effort: Effort
) -> Evidence:
    """x_{l+1} = skip + α branch, α = 0; no convolution is rescaled; a thousand layers train without normalization."""
    with seeded(context.seed):
        algorithm = _algorithm(depth, width, draws)
    runs = over_depths(context, ("batch_norm", "zeroinit"), depths, width, effort)
    trained = runs.by_depth("ZeroInit and batch norm")
    quantities = pd.DataFrame(
        [{"quantity": name, "value": one.mean} for name, one in algorithm.shares.items()],
    )
    return Evidence(
        measured=pd.concat([quantities, agreement_table(algorithm.agreements), trained.measured], ignore_index=True),
        facts=ZeroInitFacts(algorithm, runs),
        setup={
            "network of the algorithm": f"Wide-ResNet-{depth}-{width}",
            "draws of dropout": draws,
            **trained.setup,
        },
        on=("quantity",),
        draw=trained.draw,
        remarks=("The runs are those of zeroinit/table-2.", *trained.remarks),
        reduction=trained.reduction,
    )


def _algorithm(depth: int, width: int, draws: int) -> RegularizedFacts:
    original, images = built_wide_resnet(depth, width), torch.randn(4, 3, 16, 16)
    network = convert(original, "zeroinit")
    layers, with_bias, zero = biases(original, network)
    converted = dict(network.named_parameters())
    pairs = [(converted[name], one) for name, one in original.named_parameters() if one.dim() > 1]
    weights, before = (torch.cat([pair[side].detach().flatten() for pair in pairs]) for side in (0, 1))
    agreements = (
        zero,
        agreement("Weights are those of the standard initialization", weights, before),
        *blocks_at_start(network, images),
        *placement(convert(original, "zeroinit(dropout=0)"), images),
    )
    shares = {name: dropped_share(original, scheme, draws) for name, scheme in SCHEMES.items()}
    return RegularizedFacts(layers, with_bias, agreements, shares)
