"""SkipInit itself: a scalar at the end of every branch, what it starts at, what it multiplies, and what for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import pandas as pd
import torch
from torch import Tensor, nn

from normless import residual_map
from normless.sweeps import convert
from normless_papers.agreement import Agreement, agreement, agreement_table
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, check
from normless_papers.comparison import Comparison
from normless_papers.de_smith import built_wide_resnet, over_depths, scheme_of
from normless_papers.effort import Effort
from normless_papers.multiplier_agreements import blocks_at_start, placement
from normless_papers.seeded_inputs import seeded
from normless_papers.skipinit.depth import COLUMN

# The methods of skipinit/table-1, whose runs these are, by what α starts at.
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


def _skipinit_checks(found: SkipInitFacts) -> list[Check]:
    before, after = found.norms
    trains = [
        found.runs.trains(f"With α = {alpha}, {depth} layers train, as with batch norm.", STARTS[alpha], depth)
        for alpha in ("0", "1/sqrt(L)")
        for depth in sorted({*found.runs.sizes, DEEPEST})
    ]
    claim = f"With α = 1, {UNTRAINABLE} layers do not train, where batch norm does."
    untrainable = found.runs.does_not_train(claim, STARTS["1"], UNTRAINABLE)
    return [
        check("No batch normalization is left.", after == 0 < before, before=before, after=after),
        *(one.check() for one in found.agreements),
        *trains,
        untrainable,
    ]


@artefact("skipinit/skipinit", basis="training", checks=_skipinit_checks)
def skipinit(context: Context, *, depth: int, width: int, depths: Sequence[int], effort: Effort) -> Evidence:
    """x_{l+1} = skip + α branch, α = 0, 1/√L or 1; with small α 1000 layers train, with α = 1 a hundred do not."""
    with seeded(context.seed):
        original, images = built_wide_resnet(depth, width), torch.randn(4, 3, 16, 16)
        agreements = (
            *_starts(original),
            *blocks_at_start(convert(original, "skipinit"), images),
            _standard_weights(original),
            *placement(convert(original, "zeroinit(dropout=0)"), images),
        )
    runs = over_depths(context, ("batch_norm", *STARTS.values()), depths, width, effort, column=COLUMN)
    trained = runs.by_depth("SkipInit and batch norm")
    return Evidence(
        measured=pd.concat([agreement_table(agreements), trained.measured], ignore_index=True),
        facts=SkipInitFacts(_norms(original), agreements, runs),
        setup={
            "network of the algorithm": f"Wide-ResNet-{depth}-{width}",
            "d in 1/sqrt(d)": "the number of residual blocks L",
            **trained.setup,
        },
        draw=trained.draw,
        remarks=("The runs are those of skipinit/table-1.", *trained.remarks),
        reduction=trained.reduction,
    )


def _starts(original: nn.Module) -> list[Agreement]:
    """One multiplier per block, and where each starts."""
    blocks = len(residual_map(original).blocks)
    values = {"0": 0.0, "1/sqrt(L)": 1 / sqrt(blocks), "1": 1.0}
    found = []
    for label, method in STARTS.items():
        network = convert(original, scheme_of(method))
        multipliers: list[Tensor] = [one for name, one in network.named_parameters() if name.endswith("multiplier")]
        expected = torch.full((blocks, 1), values[label])
        # A wrong number of multipliers is no agreement.
        stacked = torch.stack(multipliers) if len(multipliers) == blocks else expected + float("nan")
        found.append(
            agreement(f"α = {label} is the start of one scalar in each of {blocks} blocks", stacked, expected)
        )
    return found


def _norms(original: nn.Module) -> tuple[int, int]:
    """How many batch norms there are before the conversion and after it."""
    before, after = (
        sum(isinstance(one, nn.BatchNorm2d) for one in network.modules())
        for network in (original, convert(original, "skipinit"))
    )
    return before, after


def _standard_weights(original: nn.Module) -> Agreement:
    """No weight is rescaled."""
    network = dict(convert(original, "skipinit(keep_scale=False)").named_parameters())
    pairs = [(network[name], one) for name, one in original.named_parameters() if one.dim() > 1]
    ours, theirs = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    return agreement("Weights are those of the standard initialization", ours, theirs)
