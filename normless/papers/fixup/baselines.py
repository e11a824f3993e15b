"""The baselines that Fixup is compared with: sums times √½, and layer-sequential unit variance."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from normless import convert, residual_map
from normless.models import dense, wide_resnet
from normless.papers.agreement import Agreement, agreement
from normless.papers.artefact import Context, artefact
from normless.papers.batches import training_batch
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.fixup.effort import DECAY_POLICY, wide_resnet_text
from normless.papers.outcomes import outcome_table
from normless.papers.trained import runs_do_not_train, runs_train
from normless.papers.verdict import Check, check, close
from normless.probes import signal_table
from normless.report.probes.growth import growth_against_block
from normless.training import TrainConfig


@artefact("fixup/sqrt2-scaling", basis="formula")
def sqrt2_scaling(
    context: Context, /, *, blocks: int, width: int, draws: int, depth: int, images: int, shown: str, **training: Any
) -> Evidence:
    """x_l = √½ (x_{l-1} + F(x_{l-1})): constant variance, branch and skip path alike, and no training beyond 100."""
    batch = training_batch(context, shown, images)
    with seeded(context.seed):
        drawn = [
            signal_table(convert(dense(blocks, width, branch_layers=2), "sqrt2"), torch.randn(100, 100))
            for _ in range(draws)
        ]
        network = convert(wide_resnet(depth, 1, batch.classes, batch.inputs.shape[1], initialization=None), "sqrt2")
        sums = _scaled_sums(network, batch.inputs)
        convolutional = signal_table(network, batch.inputs)
    logs = np.log([table["sum_second_moment"] / table["skip_second_moment"].iloc[0] for table in drawn])
    grown = pd.DataFrame({"block": range(blocks + 1), "growth": np.exp([0.0, *logs.mean(0)]), "law": 1.0})
    dense_ratio = float(np.mean([table["branch_second_moment"] / table["skip_second_moment"] for table in drawn]))
    per_block = float(np.exp(logs[:, -1].mean() / blocks))
    falls = convolutional["sum_second_moment"].iloc[-1] / convolutional["skip_second_moment"].iloc[0]
    runs = outcome_table(context, _runs(context, "sqrt2", **training))
    return Evidence(
        measured=pd.concat([_chosen(grown.assign(scheme="sqrt2")), runs], ignore_index=True),
        checks=(
            sums.check(),
            close(
                "The second moment stays constant: from block to block its factor is 1, to 2 %.",
                per_block, 1, relative=0.02,
            ),
            close(
                "Branch and skip path contribute equally: the ratio of their second moments is 1, to 5 %.",
                dense_ratio, 1, relative=0.05,
            ),
            *_trainable("Sums times √½", runs, training),
        ),
        setup={
            "variance": f"dense, {blocks} blocks of width {width}, two ReLU → linear on every branch, {draws} draws",
            "sums": f"Wide-ResNet-{depth}-1 on {batch.provenance}",
            **_trained(context, training),
        },
        draw=lambda: growth_against_block(grown.assign(scheme="sqrt2")),
        remarks=(
            f"In the Wide-ResNet the second moment falls to {falls:.2g} of the first block's over "
            f"{len(convolutional)} blocks: padding by zeros takes some of the branch at the images' borders.",
            "Depth 1000 at every rate is the claim of skipinit/table-3 and skipinit/table-5.",
        ),
    )  # fmt: skip


@artefact("fixup/lsuv", basis="formula")
def lsuv(context: Context, /, *, depth: int, images: int, **training: Any) -> Evidence:
    """Orthogonal weights, divided until every layer and branch puts out variance 1; no training beyond 100 layers."""
    batch = training_batch(context, training["data"], images)
    with seeded(context.seed):
        original = wide_resnet(depth, 1, batch.classes, batch.inputs.shape[1], initialization=None)
        network = convert(original, "lsuv", batch.inputs)
        table = signal_table(network, batch.inputs, training=False)
        layers = _layer_variances(network, batch.inputs)
        rows = _orthogonality(network)
    runs = outcome_table(context, _runs(context, "lsuv", **training))
    growth = [1.0, *(table["sum_variance"] / table["skip_variance"].iloc[0])]
    grown = pd.DataFrame({"scheme": "lsuv", "block": range(len(growth)), "growth": growth, "law": np.nan})
    branches = table["branch_variance"]
    kept = ["block", "skip_variance", "branch_variance", "sum_variance"]
    return Evidence(
        measured=pd.concat([_chosen(table[kept]), runs], ignore_index=True),
        checks=(
            check(
                "On the calibration batch every branch puts out variance 1, to the tolerance of 0.02.",
                bool(((branches - 1).abs() <= 0.0201).all()),
                smallest=branches.min(),
                largest=branches.max(),
            ),
            check(
                "So does every other weight layer.",
                all(abs(variance - 1) <= 0.0201 for variance in layers),
                smallest=min(layers),
                largest=max(layers),
                layers=len(layers),
            ),
            rows.check(),
            *_trainable("LSUV", runs, training),
        ),
        setup={
            "calibrated": f"Wide-ResNet-{depth}-1 on {batch.provenance}, one draw of weights",
            **_trained(context, training),
        },
        draw=lambda: growth_against_block(grown, up="variance behind the sum / that in front of block 1"),
        remarks=(
            "The output of a residual block is read as that of its branch. Behind the sums the variance grows by "
            "about 1 with every block of a stage, as with batch normalization; the figure shows it.",
        ),
    )


def _scaled_sums(network: nn.Module, images: Tensor) -> Agreement:
    """Every sum's output against √½ (skip + branch)."""
    worst = Agreement("Every sum is √½ (x + F(x))", 0.0, 1e-6)

    def compare(_: nn.Module, sides: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal worst
        here = agreement(worst.quantity, output, sqrt(0.5) * (sides[0] + sides[1]), worst.tolerance)
        worst = max(worst, here, key=lambda one: one.deviation)

    sums = [network.get_submodule(block.sum or "") for block in residual_map(network).blocks]
    handles = [one.register_forward_hook(compare) for one in sums]
    with torch.no_grad():
        network(images)
    for handle in handles:
        handle.remove()
    return worst


def _layer_variances(network: nn.Module, images: Tensor) -> list[float]:
    """The variance of every weight layer's output on a batch."""
    found: list[float] = []
    layers = [one for one in network.modules() if isinstance(one, (nn.Conv2d, nn.Linear))]
    handles = [
        one.register_forward_hook(lambda _, __, output: found.append(float(output.var(correction=0))))
        for one in layers
    ]
    with torch.no_grad():
        network.eval()(images)
    for handle in handles:
        handle.remove()
    return found


def _orthogonality(network: nn.Module) -> Agreement:
    """Rows of every weight, as a matrix, or its columns where there are fewer: orthogonal, and all of one length."""
    worst = Agreement("Every weight is orthogonal up to its scale", 0.0, 1e-4)
    for layer in network.modules():
        if not isinstance(layer, (nn.Conv2d, nn.Linear)):
            continue
        matrix = layer.weight.detach().double().flatten(1)
        tall = len(matrix) > matrix.shape[1]
        gram = matrix.T @ matrix if tall else matrix @ matrix.T
        scale = gram.diagonal().mean()
        here = agreement(worst.quantity, gram / scale, torch.eye(len(gram), dtype=torch.float64), worst.tolerance)
        worst = max(worst, here, key=lambda one: one.deviation)
    return worst


def _chosen(table: pd.DataFrame) -> pd.DataFrame:
    """About a dozen rows, the last among them."""
    step = max(1, len(table) // 12)
    return table.iloc[sorted({*range(0, len(table), step), len(table) - 1})]


def _runs(
    context: Context, scheme: str, *, depths: tuple[int, ...], rates: tuple[float, ...], data: str, epochs: int,
    batch_size: int,
) -> list[tuple[dict[str, Any], TrainConfig]]:  # fmt: skip
    """The baseline and Fixup at every depth and rate, width 1."""
    return [
        (
            {"scheme": name, "depth": depth},
            TrainConfig(
                model=wide_resnet_text(depth, 1), scheme=name, data=context.data_or(data),
                data_root=context.data_root, batch_size=batch_size, epochs=epochs, rate=rate, schedule="constant",
                decay_policy=DECAY_POLICY, seed=context.seed,
            ),
        )
        for name in (scheme, "fixup")
        for depth in depths
        for rate in rates
    ]  # fmt: skip


def _trainable(name: str, runs: pd.DataFrame, training: dict[str, Any]) -> list[Check]:
    baseline = runs[(runs["scheme"] != "fixup") & (runs["depth"] > 100)]
    fixup = runs[(runs["scheme"] == "fixup") & (runs["depth"] > 100)]
    depths = ", ".join(str(depth) for depth in training["depths"] if depth > 100)
    return [
        runs_do_not_train(f"{name}: {depths} layers are not trained by the first epoch at rate 0.1.", baseline),
        runs_train(f"Fixup trains as many ({depths}) at the same rate.", fixup),
    ]


def _trained(context: Context, training: dict[str, Any]) -> dict[str, Any]:
    """What the runs were, for the setup."""
    return {
        "trained": f"Wide-ResNets of width 1, {context.data_or(training['data'])}, {training['epochs']} epoch at "
        f"rate {', '.join(f'{rate:g}' for rate in training['rates'])}, batch size {training['batch_size']}, one "
        "run each",
        "seed": context.seed,
    }
