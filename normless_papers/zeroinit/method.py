"""ZeroInit: a zero multiplier at every branch end, zero biases, dropout before the classifier; and that it trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from torch import Tensor, nn

from normless_papers.agreement import Agreement, agreement_table, unscaled_weights
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.bias_and_dropout import RegularizedFacts, regularized_facts
from normless_papers.claims import Check
from normless_papers.comparison import Comparison
from normless_papers.de_smith import over_depths, scheme_of
from normless_papers.effort import Effort
from normless_papers.published import published_as
from normless_papers.seeded_inputs import seeded

ID = "zeroinit/zeroinit"
# The schemes of the experiments, where the paper does not mention dropout and on ImageNet, by the printed quantity.
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


def _zeroinit_checks(facts: ZeroInitFacts) -> list[Check]:
    trains = [
        facts.runs.trains(f"{depth} layers train without normalization, as with batch norm.", "zeroinit", depth)
        for depth in sorted({*facts.runs.sizes, DEEPEST})
    ]
    claim = f"{DEEPEST} layers of width 2 exceed 94 % on CIFAR-10 in 200 epochs."
    exceeds = facts.runs.exceeds(claim, ("zeroinit", DEEPEST), 94.0)
    return [*facts.algorithm.checks(published_as(ID).quantities), *trains, facts.runs.as_printed(exceeds)]


@artefact(ID, basis="training", checks=_zeroinit_checks)
def zeroinit(
    context: Context, *, depth: int, draws: int, depths: Sequence[int], width: int, effort: Effort
) -> Evidence:
    """x_{l+1} = skip + α branch, α = 0; no convolution is rescaled; a thousand layers train without normalization."""

    def weights(original: nn.Module, network: nn.Module, images: Tensor) -> Agreement:
        return unscaled_weights(original, network)

    with seeded(context.seed):
        algorithm = regularized_facts("zeroinit", depth, width, draws, SCHEMES, weights)
    runs = over_depths(context, ("batch_norm", "zeroinit"), depths, width, effort)
    trained = runs.by_depth("ZeroInit and batch norm")
    quantities = pd.DataFrame([{"quantity": name, "value": one.mean} for name, one in algorithm.shares.items()])
    measured = [quantities, agreement_table(algorithm.agreements), trained.measured]
    own = {"network of the algorithm": f"Wide-ResNet-{depth}-{width}", "draws of dropout": draws}
    return replace(
        trained,
        measured=pd.concat(measured, ignore_index=True),
        facts=ZeroInitFacts(algorithm, runs),
        setup={**own, **trained.setup},
        on=("quantity",),
        remarks=("The runs are those of zeroinit/table-2.", *trained.remarks),
    )
