"""Fixup's baselines: sums scaled by √½, and layer-sequential unit variance (LSUV)."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from normless import residual_map
from normless.models import dense
from normless.probes import probe
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import DataName, Network, Seeds
from normless_papers.claims import over_draws
from normless_papers.claims.agreement import Agreement, observed, worst_agreement
from normless_papers.experiments.effort import Effort
from normless_papers.experiments.runs import Runs
from normless_papers.fixup.depth import first_epochs, setup_of
from normless_papers.networks.seeded_inputs import MeasuredBatch, convert, seeded, training_batch
from normless_papers.plots import GROWTH

# Both baselines are compared with batch norm and Fixup.
_COMPARED = {"BatchNorm": "batch_norm", "Fixup": "fixup"}


@artefact("fixup/sqrt2-scaling", basis="training", trains=first_epochs({"sqrt(1/2)": "sqrt2", **_COMPARED}))
def sqrt2_scaling(
    context: Context,
    runs: Runs,
    *,
    blocks: Network[int],
    width: Network[int],
    draws: Seeds[int],
    depth: Network[int],
    images: Seeds[int],
    shown: DataName[str],
    efforts: Sequence[Effort],
) -> Evidence:
    batch = training_batch(context, shown, images)
    with seeded(context.seed):
        drawn = [
            probe(convert(dense(blocks, width, branch_layers=2), "sqrt2"), torch.randn(100, 100), ["signal"]).signal
            for _ in range(draws)
        ]
        network = convert(_wide_resnet(batch, depth), "sqrt2")
        sums = _scaled_sums(network, batch.inputs)
        convolutional = probe(network, batch.inputs, ["signal"]).signal
    logs = np.log([table["sum_second_moment"] / table["skip_second_moment"].iloc[0] for table in drawn])
    growth = np.exp([0.0, *logs.mean(0)])
    grown = pd.DataFrame({"block": range(blocks + 1), "growth": growth, "law": 1.0, "scheme": "sqrt2"})
    falls = convolutional["sum_second_moment"].iloc[-1] / convolutional["skip_second_moment"].iloc[0]
    ratios = [float((table["branch_second_moment"] / table["skip_second_moment"]).mean()) for table in drawn]
    setup = {
        "variance": f"dense, {blocks} blocks of width {width}, two ReLU → linear on every branch, {draws} draws",
        "sums": f"Wide-ResNet-{depth}-1 on {batch.provenance}",
    }
    return runs.evidence(
        _with_accuracies(grown, runs),
        lambda: GROWTH(grown),
        facts={
            "sums": [sums],
            "factor": over_draws(np.exp(logs[:, -1] / blocks)),
            "ratio": over_draws(ratios),
            "runs": runs,
        },
        setup=setup | setup_of(runs, efforts),
        remarks=(
            f"In the Wide-ResNet the second moment falls to {falls:.2g} of the first block's over "
            f"{len(convolutional)} blocks, since zero padding attenuates the branch at the images' borders.",
        ),
    )


@artefact("fixup/lsuv", basis="training", trains=first_epochs({"LSUV": "lsuv", **_COMPARED}))
def lsuv(
    context: Context,
    runs: Runs,
    *,
    depth: Network[int],
    images: Seeds[int],
    shown: DataName[str],
    efforts: Sequence[Effort],
) -> Evidence:
    batch = training_batch(context, shown, images)
    with seeded(context.seed):
        network = convert(_wide_resnet(batch, depth), "lsuv", batch.inputs)
        table = probe(network, batch.inputs, ["signal"], training=False).signal
        calls, _ = observed(network.eval(), _weight_layers(network), batch.inputs)
    layers = [float(output.var(correction=0)) for _, output in calls]
    growth = [1.0, *(table["sum_variance"] / table["skip_variance"].iloc[0])]
    grown = pd.DataFrame({"scheme": "lsuv", "block": range(len(growth)), "growth": growth, "law": np.nan})
    variances = table[["block", "skip_variance", "branch_variance", "sum_variance"]]
    calibration = f"Wide-ResNet-{depth}-1 on {batch.provenance}, one draw of weights"
    return runs.evidence(
        _with_accuracies(variances, runs),
        lambda: GROWTH(grown, y_label="variance after the sum / that before block 1"),
        facts={
            "branch": table["branch_variance"],
            "weight layer": layers,
            "orthogonality": [_orthogonality(network)],
            "runs": runs,
        },
        setup={"calibrated": calibration, **setup_of(runs, efforts)},
    )


def _wide_resnet(batch: MeasuredBatch, depth: int) -> nn.Module:
    return batch.network(f"normless:wide_resnet(depth={depth}, width=1, initialization=None)")


def _scaled_sums(network: nn.Module, images: Tensor) -> Agreement:
    """Compare every sum's output with √½ (skip + branch)."""
    sums = [network.get_submodule(block.sum or "") for block in residual_map(network).blocks]
    calls, _ = observed(network, sums, images)
    pairs = [(output, sqrt(0.5) * (sides[0] + sides[1])) for sides, output in calls]
    return worst_agreement("Every sum is √½ (x + F(x))", pairs, 1e-6)


def _weight_layers(network: nn.Module) -> list[Any]:
    return [module for module in network.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]


def _orthogonality(network: nn.Module) -> Agreement:
    """Compare the Gram matrix of every weight's rows, or of its columns if they are fewer, with a multiple of I."""
    pairs = []
    for layer in _weight_layers(network):
        matrix = layer.weight.detach().double().flatten(1)
        gram = matrix.T @ matrix if len(matrix) > matrix.shape[1] else matrix @ matrix.T
        pairs.append((gram / gram.diagonal().mean(), torch.eye(len(gram), dtype=torch.float64)))
    return worst_agreement("Every weight is orthogonal up to its scale", pairs, 1e-4)


def _with_accuracies(table: pd.DataFrame, runs: Runs) -> pd.DataFrame:
    """Return about a dozen rows of a table, including the last, followed by the test accuracies."""
    step = max(1, len(table) // 12)
    rows = table.iloc[sorted({*range(0, len(table), step), len(table) - 1})]
    return pd.concat([rows, runs.summary(("method", "depth"), ("test_accuracy",))], ignore_index=True)
