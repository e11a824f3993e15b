"""ZeroInit at initialization: blocks that are linear, gradients that stay correlated, a loss that is mostly L2."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
from torch import nn

from normless import convert, param_groups
from normless.models import wide_resnet
from normless.papers.agreement import ROUNDING, Agreement, agreement
from normless.papers.artefact import Context, artefact
from normless.papers.batches import training_batch
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.multipliers import blocks_at_start
from normless.papers.outcomes import all_trained, outcome_table
from normless.papers.verdict import Check, Estimate, check, larger
from normless.probes import gradient_correlation_table, l2_share, loss_terms
from normless.report.probes.against_depth import gradient_correlation_against_depth, l2_share_against_depth
from normless.training import TrainConfig

WITH, WITHOUT = "zeroinit(dropout=0)", "none"
IMAGES = "correlated(image_shape=(3, 16, 16))"


@artefact(
    "zeroinit/linear-at-init",
    smoke={"depths": (16, 40, 100), "width": 1, "images": 8, "draws": 12, "data": IMAGES},
    small={"depths": (16, 40, 100, 400, 1000), "width": 1, "images": 16, "draws": 10, "data": "cifar10"},
    paper={"depths": (16, 40, 100, 400, 1000), "width": 2, "images": 64, "draws": 20, "data": "cifar10"},
)
def linear_at_init(
    context: Context, *, depths: tuple[int, ...], width: int, images: int, draws: int, data: str
) -> Evidence:
    """f(x) = x at α = 0, and the cosine between examples' gradients over depth, with and without the multiplier."""
    batch = training_batch(context, data, images)
    rows: list[dict[str, Any]] = []
    with seeded(context.seed):
        for depth in depths:
            for draw in range(draws):
                original = wide_resnet(depth, width, batch.classes, batch.inputs.shape[1])
                for scheme in (WITH, WITHOUT):
                    found = gradient_correlation_table(convert(original, scheme), batch.inputs, seed=draw)
                    rows.append({"scheme": scheme, "depth": depth, "draw": draw, "cosine": found["cosine"].iloc[0]})
        original = wide_resnet(depths[0], width, batch.classes, batch.inputs.shape[1])
        agreements = [*blocks_at_start(convert(original, WITH), batch.inputs), _linear(original)]
    drawn = pd.DataFrame(rows)
    means = drawn.groupby(["scheme", "depth"], sort=False)["cosine"].agg(["mean", "std", "count"]).reset_index()
    return Evidence(
        measured=means.rename(columns={"mean": "cosine", "std": "deviation", "count": "n"}),
        checks=(*(one.check() for one in agreements), *_correlations(drawn, depths)),
        setup={
            "networks": f"Wide-ResNets of width {width}, depths {', '.join(map(str, depths))}",
            "images": batch.provenance,
            "gradient": "of one random direction of the logits by the stem's output",
            "draws": f"{draws} of weights and direction",
            "seed": context.seed,
        },
        draw=lambda: gradient_correlation_against_depth(drawn),
        remarks=(
            "Blocks with an identity skip path are the identity. The projecting blocks of a Wide-ResNet read their "
            "skip path behind the ReLU that they share with the branch: those are linear in that ReLU's output.",
        ),
    )


def _linear(original: nn.Module) -> Agreement:
    """f(3x - y) = 3 f(x) - f(y) for every block with an identity skip path."""
    network = convert(original, WITH).double().eval()
    what = "Blocks with an identity skip path are linear: f(3x - y) = 3 f(x) - f(y)"
    worst = Agreement(what, 0.0, ROUNDING)
    for block in network.get_submodule("blocks").children():
        convolution = block.get_submodule("conv1")
        assert isinstance(convolution, nn.Conv2d)
        if isinstance(block.get_submodule("shortcut"), nn.Conv2d):
            continue
        x, y = torch.randn(2, 2, convolution.in_channels, 8, 8, dtype=torch.float64)
        with torch.no_grad():
            here = agreement(what, block(3 * x - y), 3 * block(x) - block(y), ROUNDING)
        worst = max(worst, here, key=lambda one: one.deviation)
    return worst


def _correlations(drawn: pd.DataFrame, depths: tuple[int, ...]) -> list[Check]:
    def estimate(scheme: str, depth: int) -> Estimate:
        found = drawn[(drawn["scheme"] == scheme) & (drawn["depth"] == depth)]["cosine"]
        return Estimate(float(found.mean()), float(found.std(ddof=1)), len(found))

    low, high = min(depths), max(depths)
    start, end = estimate(WITH, low), estimate(WITH, high)
    bare_start, bare_end = estimate(WITHOUT, low), estimate(WITHOUT, high)
    half = Estimate(start.mean / 2, start.deviation / 2, start.n)
    bare_half = Estimate(bare_start.mean / 2, bare_start.deviation / 2, bare_start.n)
    return [
        larger(
            f"With the multiplier the cosine at depth {high} is more than half of that at depth {low}.", end, half
        ),
        larger(
            f"Without it the cosine at depth {high} is less than half of that at depth {low}.", bare_half, bare_end
        ),
        *(
            larger(
                f"At depth {depth} gradients are more alike with the multiplier than without.",
                estimate(WITH, depth),
                estimate(WITHOUT, depth),
            )
            for depth in depths
        ),
    ]


@artefact(
    "zeroinit/l2-dominates-initial-loss",
    smoke={"depths": (16, 100, 202), "width": 2, "images": 8, "data": IMAGES, "trained": 40, "epochs": 2},
    small={"depths": (16, 100, 1000), "width": 2, "images": 64, "data": "cifar10", "trained": 100, "epochs": 2},
    paper={"depths": (16, 100, 1000), "width": 2, "images": 256, "data": "cifar10", "trained": 1000, "epochs": 20},
)
def l2_dominates(
    context: Context, *, depths: tuple[int, ...], width: int, images: int, data: str, trained: int, epochs: int
) -> Evidence:
    """λ/2 Σ‖W‖² grows with the layers, the cross entropy stays about log 10; training without L2 is stable."""
    batch = training_batch(context, data, images)
    rows = []
    with seeded(context.seed):
        for depth in depths:
            network = convert(
                wide_resnet(depth, width, batch.classes, batch.inputs.shape[1]), "zeroinit(keep_scale=False)"
            )
            groups = param_groups(network, lr=0.1, weight_decay=5e-4)
            table = loss_terms(network, groups, batch.inputs, batch.targets)
            entropy = float(table.loc[table["term"] == "data", "value"].item())
            decay = float(table.loc[table["term"] == "l2", "value"].sum())
            # He's weights have variance 2/(k² fan-out): each adds λ/2 · 2 · fan-in of its layer.
            theory = 5e-4 * sum(one.in_channels for one in network.modules() if isinstance(one, nn.Conv2d))
            row = {"depth": depth, "cross_entropy": entropy, "l2": decay, "predicted_l2": theory}
            rows.append({"scheme": "zeroinit", **row, "share": l2_share(table)})
    measured = pd.DataFrame(rows)
    config = TrainConfig(
        model=f"normless:wide_resnet(depth={trained}, width=1)", scheme="zeroinit", data="digits", epochs=epochs,
        batch_size=32, rate=0.05, weight_decay=0.0, seed=context.seed,
    )  # fmt: skip
    runs = outcome_table(context, [({"scheme": "zeroinit", "weight_decay": 0.0, "depth": trained}, config)])
    return Evidence(
        measured=pd.concat([measured, runs], ignore_index=True),
        checks=(*_shares(measured), all_trained(f"Without L2 the training of {trained} layers is stable.", runs)),
        setup={
            "networks": f"Wide-ResNets of width {width} with ZeroInit, L2 5e-4 on the weights",
            "images": batch.provenance,
            "trained without L2": f"Wide-ResNet-{trained}-1, digits, {epochs} epochs, rate 0.05, batch 32, one run",
            "draws of weights": 1,
            "seed": context.seed,
        },
        draw=lambda: l2_share_against_depth(measured),
        remarks=("That the optimal rate does not depend on depth is zeroinit/table-3's claim, and measured there.",),
    )


def _shares(measured: pd.DataFrame) -> list[Check]:
    shares, entropies = measured["share"], measured["cross_entropy"]
    ratio = measured["l2"] / measured["predicted_l2"]
    return [
        check(
            "The share of L2 in the initial loss increases with depth.",
            bool(shares.is_monotonic_increasing and shares.is_unique),
            **{f"depth_{depth}": share for depth, share in zip(measured["depth"], shares, strict=True)},
        ),
        check(
            "The cross entropy does not: over the depths it varies by less than 20 %.",
            bool(entropies.max() < 1.2 * entropies.min()),
            smallest=entropies.min(),
            largest=entropies.max(),
        ),
        check(
            "The L2 term is λ Σ fan-in of He's convolutions, to 5 %.",
            bool(((ratio - 1).abs() < 0.05).all()),
            smallest_ratio=ratio.min(),
            largest_ratio=ratio.max(),
        ),
    ]
