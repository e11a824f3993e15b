"""SkipInit itself: a scalar at the end of every branch, what it starts at, what it multiplies, and what for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import pandas as pd
import torch
from torch import nn

from normless import residual_map
from normless.sweeps import convert
from normless_papers.agreement import Agreement, agreement, agreement_table, unscaled_weights
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check
from normless_papers.comparison import Comparison
from normless_papers.de_smith import built_wide_resnet, over_depths, scheme_of
from normless_papers.effort import Effort
from normless_papers.multiplier_agreements import blocks_at_start, placement
from normless_papers.reference_forward import multipliers
from normless_papers.seeded_inputs import seeded
from normless_papers.skipinit.depth import COLUMN

# The methods of skipinit/table-1, whose runs these are, by the start of α.
STARTS = {"0": "skipinit_alpha_0", "1/sqrt(L)": "skipinit_alpha_inv_sqrt_d", "1": "skipinit_alpha_1"}
UNTRAINABLE, DEEPEST = 100, 1000


@dataclass(frozen=True)
class SkipInitFacts:
    """The algorithm compared with its formula, and the runs with it.

    Attributes:
        norms: batch normalizations before and after the conversion.
        agreements: of the converted networks with the formula.
        runs: batch norm and three starts of α at several depths.
    """

    norms: tuple[int, int]
    agreements: tuple[Agreement, ...]
    runs: Comparison


def _skipinit_checks(facts: SkipInitFacts) -> list[Check]:
    before, after = facts.norms
    trains = [
        facts.runs.trains(f"With α = {alpha}, {depth} layers train, as with batch norm.", STARTS[alpha], depth)
        for alpha in ("0", "1/sqrt(L)")
        for depth in sorted({*facts.runs.sizes, DEEPEST})
    ]
    claim = f"With α = 1, {UNTRAINABLE} layers do not train, where batch norm does."
    return [
        check("No batch normalization is left.", after == 0 < before, before=before, after=after),
        *(one.check() for one in facts.agreements),
        *trains,
        facts.runs.does_not_train(claim, STARTS["1"], UNTRAINABLE),
    ]


@artefact("skipinit/skipinit", basis="training", checks=_skipinit_checks)
def skipinit(context: Context, *, depth: int, width: int, depths: Sequence[int], effort: Effort) -> Evidence:
    """x_{l+1} = skip + α branch, α = 0, 1/√L or 1; with small α 1000 layers train, with α = 1 a hundred do not."""
    with seeded(context.seed):
        original, images = built_wide_resnet(depth, width), torch.randn(4, 3, 16, 16)
        agreements = (
            *_starts(original),
            *blocks_at_start(convert(original, "skipinit"), images),
            unscaled_weights(original, convert(original, "skipinit(keep_scale=False)")),
            *placement(convert(original, "zeroinit(dropout=0)"), images),
        )
    norms = [
        sum(isinstance(one, nn.BatchNorm2d) for one in network.modules())
        for network in (original, convert(original, "skipinit"))
    ]
    runs = over_depths(context, ("batch_norm", *STARTS.values()), depths, width, effort, column=COLUMN)
    trained = runs.by_depth("SkipInit and batch norm")
    own = {
        "network of the algorithm": f"Wide-ResNet-{depth}-{width}",
        "d in 1/sqrt(d)": "the number of residual blocks L",
    }
    return replace(
        trained,
        measured=pd.concat([agreement_table(agreements), trained.measured], ignore_index=True),
        facts=SkipInitFacts((norms[0], norms[1]), agreements, runs),
        setup={**own, **trained.setup},
        on=(),
        remarks=("The runs are those of skipinit/table-1.", *trained.remarks),
    )


def _starts(original: nn.Module) -> list[Agreement]:
    """One multiplier per block, and where each starts."""
    blocks = len(residual_map(original).blocks)
    agreements = []
    for (label, method), value in zip(STARTS.items(), (0.0, 1 / sqrt(blocks), 1.0), strict=True):
        starts = multipliers(convert(original, scheme_of(method)))
        # A wrong number of multipliers is no agreement.
        starts = starts if len(starts) == blocks else torch.full((blocks,), torch.nan)
        quantity = f"α = {label} is the start of one scalar in each of {blocks} blocks"
        agreements.append(agreement(quantity, starts, torch.full((blocks,), value)))
    return agreements
