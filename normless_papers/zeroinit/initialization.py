"""ZeroInit as an algorithm, and at initialization: linear blocks, correlated gradients, a loss dominated by L2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless import param_groups
from normless_lab.plots import Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import DataName, Network, Seeds
from normless_papers.claims import Claim, Estimate, check, larger, replicates
from normless_papers.claims.agreement import ROUNDING, Agreement, agreement_table, unscaled_weights, worst_agreement
from normless_papers.evidence import with_quantities
from normless_papers.experiments.comparison import Comparison
from normless_papers.experiments.de_smith import built_wide_resnet, over_depths, scheme_of
from normless_papers.experiments.de_smith_claims import compared
from normless_papers.experiments.effort import Effort, TrainingSweeps
from normless_papers.experiments.runs import Runs, chosen
from normless_papers.networks.reference_forward import RegularizedFacts, blocks_at_start, regularized_facts
from normless_papers.networks.seeded_inputs import MeasuredBatch, convert, seeded, training_batch
from normless_papers.probes.network_function import as_function
from normless_papers.probes.training_signals import gradient_correlation_table
from normless_papers.published import published_as

ID = "zeroinit/zeroinit"
# Schemes by the printed quantity: of the experiments that do not mention dropout, and of ImageNet.
SCHEMES = {
    "default_drop_probability": scheme_of("zeroinit"),
    "imagenet_drop_probability": "zeroinit(dropout=0.2)",
}
WITH, WITHOUT = "zeroinit(dropout=0)", "none"
WEIGHT_DECAY = 5e-4
DEEPEST = 1000


def _zeroinit_checks(facts: tuple[RegularizedFacts, Comparison]) -> list[Claim]:
    """Check the algorithm against its definition, and batch norm and ZeroInit at several depths."""
    algorithm, runs = facts
    trains = [
        runs.trains(f"{depth} layers train without normalization, as with batch norm.", "zeroinit", depth)
        for depth in sorted({*runs.sizes, DEEPEST})
    ]
    claim = f"{DEEPEST} layers of width 2 exceed 94 % on CIFAR-10 in 200 epochs."
    exceeds = runs.exceeds(claim, ("zeroinit", DEEPEST), 94.0)
    return [*algorithm.checks(published_as(ID).quantities), *trains, runs.as_printed(exceeds)]


@artefact(
    ID, basis="training", checks=_zeroinit_checks, trains=partial(over_depths, methods=("batch_norm", "zeroinit"))
)
def zeroinit(
    context: Context,
    own_runs: Runs,
    *,
    depth: Network[int],
    draws: Seeds[int],
    depths: Network[Sequence[int]],
    width: Network[int],
    effort: Effort,
) -> Evidence:
    def weights(original: nn.Module, network: nn.Module, images: Tensor) -> Agreement:
        return unscaled_weights(original, network)

    with seeded(context.seed):
        algorithm = regularized_facts("zeroinit", depth, width, draws, SCHEMES, weights)
    runs = compared(own_runs, effort)
    trained = runs.by_depth("ZeroInit and batch norm")
    shares = {name: share.mean for name, share in algorithm.shares.items()}
    own = {"network of the algorithm": f"Wide-ResNet-{depth}-{width}", "draws of dropout": draws}
    return replace(
        trained,
        measured=with_quantities(shares, agreement_table(algorithm.agreements), trained.measured),
        facts=(algorithm, runs),
        setup={**own, **trained.setup},
        on=("quantity",),
        remarks=trained.remarks,
    )


def _linear_checks(facts: tuple[Sequence[Agreement], pd.DataFrame]) -> list[Claim]:
    """Check blocks against α = 0, and the cosines of gradients: `scheme`, `depth`, `draw`, `cosine`."""
    agreements, table = facts
    low, high = int(table["depth"].min()), int(table["depth"].max())
    cosines = {
        (scheme, depth): replicates(chosen(table, scheme=scheme, depth=depth).set_index("draw")["cosine"])
        for scheme in (WITH, WITHOUT)
        for depth in (low, high)
    }
    with_high, without_high = cosines[WITH, high], cosines[WITHOUT, high]
    half_with, half_without = (cosines[scheme, low].scaled(0.5) for scheme in (WITH, WITHOUT))
    half = f"half of that at depth {low}."
    more = f"At depth {high} gradients are more correlated with the multiplier than without."
    return [
        *map(Agreement.check, agreements),
        larger(f"With the multiplier the cosine at depth {high} is more than {half}", with_high, half_with),
        larger(f"Without it the cosine at depth {high} is less than {half}", half_without, without_high),
        larger(more, with_high, without_high),
    ]


@artefact("zeroinit/linear-at-init", basis="measurement", checks=_linear_checks)
def linear_at_init(
    context: Context,
    *,
    depths: Network[Sequence[int]],
    width: Network[int],
    images: Seeds[int],
    draws: Seeds[int],
    data: DataName[str],
) -> Evidence:
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
        facts=(agreements, drawn),
        setup={
            "networks": f"Wide-ResNets of width {width}, depths {', '.join(map(str, depths))}",
            "images": batch.provenance,
            "gradient": "of one random direction of the logits by the stem's output",
            "draws": f"{draws} of weights and direction",
        },
        draw=lambda: CORRELATIONS(drawn),
    )


def _linear(original: nn.Module) -> Agreement:
    """Compare f(3x - y) with 3 f(x) - f(y) for every block with an identity skip path."""
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


_ByDepth = Mapping[int, Estimate]


def _initial_loss_checks(facts: tuple[_ByDepth, _ByDepth, Comparison]) -> list[Claim]:
    """Check the L2 term's share of the initial loss, the cross entropy in nats, and runs with and without L2."""
    shares, entropies, runs = facts
    depths = sorted(shares)
    means = [entropies[depth].mean for depth in depths]
    rises, deepest = "L2 is a larger share of the initial loss at depth", shares[depths[-1]]
    stable = "layers is stable: they train at some rate."
    return [
        *(
            larger(f"{rises} {deep} than at {shallow}.", shares[deep], shares[shallow])
            for shallow, deep in pairwise(depths)
        ),
        larger(f"At depth {depths[-1]} it dominates: it is more than half of the loss.", deepest, Estimate(0.5)),
        check(
            "The cross entropy does not grow with depth: it varies by less than 20 %.",
            max(means) < 1.2 * min(means),
            smallest=min(means),
            largest=max(means),
        ),
        *(
            runs.trains(f"Without L2 the training of {depth} {stable}", "zeroinit_without_l2", depth)
            for depth in sorted({*runs.sizes, DEEPEST})
        ),
    ]


def _without_l2(context: Context, *, trained: Sequence[int], width: int, effort: Effort, **_: Any) -> TrainingSweeps:
    methods = ("batch_norm", "zeroinit_without_l2")
    return over_depths(context, methods=methods, depths=trained, width=width, effort=effort)


@artefact("zeroinit/l2-dominates-initial-loss", basis="measurement", checks=_initial_loss_checks, trains=_without_l2)
def l2_dominates(
    context: Context,
    own_runs: Runs,
    *,
    depths: Network[Sequence[int]],
    width: Network[int],
    images: Seeds[int],
    draws: Seeds[int],
    data: DataName[str],
    trained: Network[Sequence[int]],
    effort: Effort,
) -> Evidence:
    batch = training_batch(context, data, images)
    with seeded(context.seed):
        rows = [{"draw": draw, **_loss_terms(batch, depth, width)} for depth in depths for draw in range(draws)]
    table = pd.DataFrame(rows)
    runs = compared(own_runs, effort)
    shown = runs.by_depth("ZeroInit without L2")
    means = table.groupby(["scheme", "depth"], sort=False).mean().drop(columns="draw").reset_index()
    by_depth = dict(list(table.set_index("draw").groupby("depth")))
    shares, entropies = (
        {depth: replicates(by_depth[depth][column]) for depth in depths} for column in ("share", "cross_entropy")
    )
    return replace(
        shown,
        measured=pd.concat([means, shown.measured], ignore_index=True),
        facts=(shares, entropies, runs),
        setup={
            "networks": f"Wide-ResNets of width {width} with ZeroInit, L2 {WEIGHT_DECAY:g} on the weights",
            "images": batch.provenance,
            "draws of weights": draws,
            **{f"trained: {name}": value for name, value in shown.setup.items()},
        },
        on=(),
        draw=lambda: L2_SHARES(means),
        remarks=shown.remarks,
    )


def _loss_terms(batch: MeasuredBatch, depth: int, width: int) -> dict[str, Any]:
    """Measure the terms of the loss of one draw of the weights."""
    network = convert(_wide_resnet(batch, depth, width), "zeroinit")
    with torch.no_grad(), as_function(network, training=True) as logits:
        entropy = float(nn.functional.cross_entropy(logits({}, batch.inputs), batch.targets))
    groups = param_groups(network, lr=0.1, weight_decay=WEIGHT_DECAY, policy="weights")
    l2 = sum(
        group["weight_decay"] / 2 * float(weight.detach().double().square().sum())
        for group in groups
        for weight in group["params"]
    )
    terms = {"cross_entropy": entropy, "l2": l2, "share": l2 / (entropy + l2)}
    return {"scheme": "zeroinit", "depth": depth} | terms


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
