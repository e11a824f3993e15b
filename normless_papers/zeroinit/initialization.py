"""ZeroInit at initialization: blocks that are linear, gradients that stay correlated, a loss that is mostly L2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from torch import nn

from normless import param_groups
from normless.plots import Plot
from normless.sweeps import convert
from normless_papers.agreement import ROUNDING, Agreement, worst_agreement
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, larger, replicates
from normless_papers.comparison import Comparison
from normless_papers.de_smith import built_wide_resnet, over_depths
from normless_papers.effort import Effort
from normless_papers.multiplier_agreements import blocks_at_start
from normless_papers.probes import gradient_correlation_table, l2_share, loss_terms
from normless_papers.seeded_inputs import MeasuredBatch, seeded, training_batch

WITH, WITHOUT = "zeroinit(dropout=0)", "none"
WEIGHT_DECAY = 5e-4
DEEPEST = 1000


@dataclass(frozen=True)
class LinearFacts:
    """Blocks compared with those at α = 0, and cosines between gradients: `scheme`, `depth`, `draw`, `cosine`."""

    agreements: tuple[Agreement, ...]
    cosines: pd.DataFrame


def _linear_checks(found: LinearFacts) -> list[Check]:
    def cosine(scheme: str, depth: int) -> Estimate:
        table = found.cosines
        kept = table[(table["scheme"] == scheme) & (table["depth"] == depth)]
        return replicates(kept.set_index("draw")["cosine"])

    low, high = int(found.cosines["depth"].min()), int(found.cosines["depth"].max())
    return [
        *(one.check() for one in found.agreements),
        larger(
            f"With the multiplier the cosine at depth {high} is more than half of that at depth {low}.",
            cosine(WITH, high),
            cosine(WITH, low).scaled(0.5),
        ),
        larger(
            f"Without it the cosine at depth {high} is less than half of that at depth {low}.",
            cosine(WITHOUT, low).scaled(0.5),
            cosine(WITHOUT, high),
        ),
        larger(
            f"At depth {high} gradients are more correlated with the multiplier than without.",
            cosine(WITH, high),
            cosine(WITHOUT, high),
        ),
    ]


@artefact("zeroinit/linear-at-init", basis="measurement", checks=_linear_checks)
def linear_at_init(
    context: Context, *, depths: Sequence[int], width: int, images: int, draws: int, data: str
) -> Evidence:
    """f(x) = x at α = 0, and the cosine between examples' gradients over depth, with and without the multiplier."""
    batch = training_batch(context, data, images)
    rows: list[dict[str, Any]] = []
    with seeded(context.seed):
        for depth in depths:
            for draw in range(draws):
                original = built_wide_resnet(depth, width, batch.classes, batch.inputs.shape[1])
                for scheme in (WITH, WITHOUT):
                    found = gradient_correlation_table(convert(original, scheme), batch.inputs, seed=draw)
                    rows.append({"scheme": scheme, "depth": depth, "draw": draw, "cosine": found["cosine"].iloc[0]})
        original = built_wide_resnet(depths[0], width, batch.classes, batch.inputs.shape[1])
        agreements = (*blocks_at_start(convert(original, WITH), batch.inputs), _linear(original))
    drawn = pd.DataFrame(rows)
    means = drawn.groupby(["scheme", "depth"], sort=False)["cosine"].agg(["mean", "std", "count"]).reset_index()
    return Evidence(
        measured=means.rename(columns={"mean": "cosine", "std": "deviation", "count": "n"}),
        facts=LinearFacts(agreements, drawn),
        setup={
            "networks": f"Wide-ResNets of width {width}, depths {', '.join(map(str, depths))}",
            "images": batch.provenance,
            "gradient": "of one random direction of the logits by the stem's output",
            "draws": f"{draws} of weights and direction",
        },
        draw=lambda: CORRELATIONS(drawn),
        remarks=(
            "Blocks with an identity skip path are the identity. The projecting blocks of a Wide-ResNet read their "
            "skip path after the ReLU that they share with the branch: those are linear in that ReLU's output.",
        ),
    )


def _linear(original: nn.Module) -> Agreement:
    """f(3x - y) = 3 f(x) - f(y) for every block with an identity skip path."""
    network = convert(original, WITH).double().eval()
    what = "Blocks with an identity skip path are linear: f(3x - y) = 3 f(x) - f(y)"
    pairs = []
    for block in network.get_submodule("blocks").children():
        convolution = block.get_submodule("conv1")
        assert isinstance(convolution, nn.Conv2d)
        if isinstance(block.get_submodule("shortcut"), nn.Conv2d):
            continue
        x, y = torch.randn(2, 2, convolution.in_channels, 8, 8, dtype=torch.float64)
        with torch.no_grad():
            pairs.append((block(3 * x - y), 3 * block(x) - block(y)))
    return worst_agreement(what, pairs, ROUNDING)


@dataclass(frozen=True)
class InitialLoss:
    """The loss at initialization by depth, over draws of the weights, and runs without L2.

    Attributes:
        shares: of the L2 term in the whole, between 0 and 1.
        entropies: the cross entropy in nats.
        runs: batch norm with L2 and ZeroInit without, at several depths.
    """

    shares: Mapping[int, Estimate]
    entropies: Mapping[int, Estimate]
    runs: Comparison


def _initial_loss_checks(found: InitialLoss) -> list[Check]:
    depths = sorted(found.shares)
    means = [found.entropies[depth].mean for depth in depths]
    return [
        *(
            larger(
                f"L2 is a larger share of the initial loss at depth {deep} than at {shallow}.",
                found.shares[deep],
                found.shares[shallow],
            )
            for shallow, deep in pairwise(depths)
        ),
        larger(
            f"At depth {depths[-1]} it dominates: it is more than half of the loss.",
            found.shares[depths[-1]],
            Estimate(0.5),
        ),
        check(
            "The cross entropy does not grow with it: over the depths it varies by less than 20 %.",
            max(means) < 1.2 * min(means),
            smallest=min(means),
            largest=max(means),
        ),
        *(
            found.runs.trains(
                f"Without L2 the training of {depth} layers is stable: they train at some rate.",
                "zeroinit_without_l2",
                depth,
            )
            for depth in sorted({*found.runs.sizes, DEEPEST})
        ),
    ]


@artefact("zeroinit/l2-dominates-initial-loss", basis="measurement", checks=_initial_loss_checks)
def l2_dominates(
    context: Context,
    *,
    depths: Sequence[int],
    width: int,
    images: int,
    draws: int,
    data: str,
    trained: Sequence[int],
    effort: Effort,
) -> Evidence:
    """λ/2 Σ‖W‖² grows with the layers, the cross entropy stays about log 10; training without L2 is stable."""
    batch = training_batch(context, data, images)
    with seeded(context.seed):
        rows = [{"draw": draw, **_loss_terms(batch, depth, width)} for depth in depths for draw in range(draws)]
    table = pd.DataFrame(rows)
    methods = ("batch_norm", "zeroinit_without_l2")
    runs = over_depths(context, methods, trained, width, effort)
    shown = runs.by_depth("ZeroInit without L2")
    means = table.groupby(["scheme", "depth"], sort=False).mean().drop(columns="draw").reset_index()
    by_depth = dict(list(table.set_index("draw").groupby("depth")))
    return Evidence(
        measured=pd.concat([means, shown.measured], ignore_index=True),
        facts=InitialLoss(
            {depth: replicates(by_depth[depth]["share"]) for depth in depths},
            {depth: replicates(by_depth[depth]["cross_entropy"]) for depth in depths},
            runs,
        ),
        setup={
            "networks": f"Wide-ResNets of width {width} with ZeroInit, L2 {WEIGHT_DECAY:g} on the weights",
            "images": batch.provenance,
            "draws of weights": draws,
            **{f"trained: {name}": value for name, value in shown.setup.items()},
        },
        draw=lambda: L2_SHARES(means),
        remarks=(
            "That the optimal rate does not depend on depth is zeroinit/table-3's claim, whose runs these are.",
            *shown.remarks,
        ),
        reduction=shown.reduction,
    )


def _loss_terms(batch: MeasuredBatch, depth: int, width: int) -> dict[str, Any]:
    """The terms of the loss of one draw of the weights."""
    network = convert(built_wide_resnet(depth, width, batch.classes, batch.inputs.shape[1]), "zeroinit")
    groups = param_groups(network, lr=0.1, weight_decay=WEIGHT_DECAY, policy="weights")
    table = loss_terms(network, groups, batch.inputs, batch.targets)
    entropy = float(table.loc[table["term"] == "data", "value"].item())
    decay = float(table.loc[table["term"] == "l2", "value"].sum())
    return {"scheme": "zeroinit", "depth": depth, "cross_entropy": entropy, "l2": decay, "share": l2_share(table)}


CORRELATIONS = Plot(
    "lines",
    x="depth",
    y="cosine",
    summary="median",
    log="x",
    y_marks=[0],
    title="Shattered gradients",
    y_label="cosine between examples' gradients",
)

L2_SHARES = Plot(
    "lines",
    x="depth",
    y="share",
    summary="median",
    log="x",
    y_ticks="percent",
    y_limits=(0, 1),
    title="The loss at initialization",
    y_label="share of the L2 term",
)
