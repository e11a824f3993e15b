"""ZeroInit at initialization: blocks that are linear, gradients that stay correlated, a loss that is mostly L2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
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
from normless_papers.runs import chosen
from normless_papers.seeded_inputs import MeasuredBatch, seeded, training_batch

WITH, WITHOUT = "zeroinit(dropout=0)", "none"
WEIGHT_DECAY = 5e-4
DEEPEST = 1000


@dataclass(frozen=True)
class LinearFacts:
    """Blocks compared with those at α = 0, and cosines between gradients: `scheme`, `depth`, `draw`, `cosine`."""

    agreements: tuple[Agreement, ...]
    cosines: pd.DataFrame


def _linear_checks(facts: LinearFacts) -> list[Check]:
    low, high = int(facts.cosines["depth"].min()), int(facts.cosines["depth"].max())
    cosines = {
        (scheme, depth): replicates(chosen(facts.cosines, scheme=scheme, depth=depth).set_index("draw")["cosine"])
        for scheme in (WITH, WITHOUT)
        for depth in (low, high)
    }
    with_high, without_high = cosines[WITH, high], cosines[WITHOUT, high]
    half = f"half of that at depth {low}."
    more = f"At depth {high} gradients are more correlated with the multiplier than without."
    return [
        *(one.check() for one in facts.agreements),
        larger(
            f"With the multiplier the cosine at depth {high} is more than {half}",
            with_high,
            cosines[WITH, low].scaled(0.5),
        ),
        larger(
            f"Without it the cosine at depth {high} is less than {half}",
            cosines[WITHOUT, low].scaled(0.5),
            without_high,
        ),
        larger(more, with_high, without_high),
    ]


@artefact("zeroinit/linear-at-init", basis="measurement", checks=_linear_checks)
def linear_at_init(
    context: Context, *, depths: Sequence[int], width: int, images: int, draws: int, data: str
) -> Evidence:
    """f(x) = x at α = 0, and the cosine between examples' gradients over depth, with and without the multiplier."""
    batch = training_batch(context, data, images)
    rows = []
    with seeded(context.seed):
        for depth, draw in product(depths, range(draws)):
            original = _wide_resnet(batch, depth, width)
            for scheme in (WITH, WITHOUT):
                table = gradient_correlation_table(convert(original, scheme), batch.inputs, seed=draw)
                rows.append((scheme, depth, draw, table["cosine"].iloc[0]))
        original = _wide_resnet(batch, depths[0], width)
        agreements = (*blocks_at_start(convert(original, WITH), batch.inputs), _linear(original))
    drawn = pd.DataFrame(rows, columns=["scheme", "depth", "draw", "cosine"])
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
    pairs = []
    for block in network.get_submodule("blocks").children():
        if isinstance(block.get_submodule("shortcut"), nn.Conv2d):
            continue
        channels = block.get_submodule("conv1").get_parameter("weight").shape[1]
        x, y = torch.randn(2, 2, channels, 8, 8, dtype=torch.float64)
        with torch.no_grad():
            pairs.append((block(3 * x - y), 3 * block(x) - block(y)))
    what = "Blocks with an identity skip path are linear: f(3x - y) = 3 f(x) - f(y)"
    return worst_agreement(what, pairs, ROUNDING)


def _wide_resnet(batch: MeasuredBatch, depth: int, width: int) -> nn.Module:
    return built_wide_resnet(depth, width, batch.classes, batch.inputs.shape[1])


@dataclass(frozen=True)
class InitialLoss:
    """By depth the L2 term's share of the initial loss and the cross entropy in nats; runs with and without L2."""

    shares: Mapping[int, Estimate]
    entropies: Mapping[int, Estimate]
    runs: Comparison


def _initial_loss_checks(facts: InitialLoss) -> list[Check]:
    depths = sorted(facts.shares)
    means = [facts.entropies[depth].mean for depth in depths]
    rises, deepest = "L2 is a larger share of the initial loss at depth", facts.shares[depths[-1]]
    stable = "layers is stable: they train at some rate."
    return [
        *(
            larger(f"{rises} {deep} than at {shallow}.", facts.shares[deep], facts.shares[shallow])
            for shallow, deep in pairwise(depths)
        ),
        larger(f"At depth {depths[-1]} it dominates: it is more than half of the loss.", deepest, Estimate(0.5)),
        check(
            "The cross entropy does not grow with it: over the depths it varies by less than 20 %.",
            max(means) < 1.2 * min(means),
            smallest=min(means),
            largest=max(means),
        ),
        *(
            facts.runs.trains(f"Without L2 the training of {depth} {stable}", "zeroinit_without_l2", depth)
            for depth in sorted({*facts.runs.sizes, DEEPEST})
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
    runs = over_depths(context, ("batch_norm", "zeroinit_without_l2"), trained, width, effort)
    shown = runs.by_depth("ZeroInit without L2")
    means = table.groupby(["scheme", "depth"], sort=False).mean().drop(columns="draw").reset_index()
    by_depth = dict(list(table.set_index("draw").groupby("depth")))
    shares, entropies = (
        {depth: replicates(by_depth[depth][column]) for depth in depths} for column in ("share", "cross_entropy")
    )
    return replace(
        shown,
        measured=pd.concat([means, shown.measured], ignore_index=True),
        facts=InitialLoss(shares, entropies, runs),
        setup={
            "networks": f"Wide-ResNets of width {width} with ZeroInit, L2 {WEIGHT_DECAY:g} on the weights",
            "images": batch.provenance,
            "draws of weights": draws,
            **{f"trained: {name}": value for name, value in shown.setup.items()},
        },
        on=(),
        draw=lambda: L2_SHARES(means),
        remarks=(
            "That the optimal rate does not depend on depth is zeroinit/table-3's claim, whose runs these are.",
            *shown.remarks,
        ),
    )


def _loss_terms(batch: MeasuredBatch, depth: int, width: int) -> dict[str, Any]:
    """The terms of the loss of one draw of the weights."""
    network = convert(_wide_resnet(batch, depth, width), "zeroinit")
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
