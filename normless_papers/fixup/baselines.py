"""The baselines that Fixup is compared with: sums times √½, and layer-sequential unit variance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from normless import residual_map
from normless.models import dense, wide_resnet
from normless.probes import probe
from normless.sweeps import convert
from normless_papers.agreement import Agreement, observed, worst_agreement
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, over_draws, within
from normless_papers.effort import Effort
from normless_papers.fixup.depth import LIMIT, deep_does_not_train, first_epochs, setup_of, trains_as_batch_norm
from normless_papers.plots import GROWTH
from normless_papers.runs import Runs
from normless_papers.seeded_inputs import seeded, training_batch

_COMPARED = {"BatchNorm": "batch_norm", "Fixup": "fixup"}


@dataclass(frozen=True)
class Scaled:
    """Sums times √½: every sum against √½ (x + F(x)), and the training.

    Attributes:
        sums: the agreement.
        per_block: the factor of the second moment from block to block, over draws.
        ratio: of the second moments of branch and skip path, over draws.
        runs: see `normless_papers.fixup.depth.first_epochs`.
    """

    sums: Agreement
    per_block: Estimate
    ratio: Estimate
    runs: Runs


def _sqrt2_scaling(found: Scaled) -> list[Check]:
    return [
        found.sums.check(),
        within(
            "The second moment stays constant: from block to block its factor is 1, to 2 %.",
            found.per_block, 0.98, 1.02,
        ),
        within(
            "Branch and skip path contribute equally: the ratio of their second moments is 1, to 5 %.",
            found.ratio, 0.95, 1.05,
        ),
        *_trainable(found.runs, "sqrt(1/2)", "With sums times √½"),
    ]  # fmt: skip


@artefact("fixup/sqrt2-scaling", basis="training", checks=_sqrt2_scaling)
def sqrt2_scaling(
    context: Context,
    /,
    *,
    blocks: int,
    width: int,
    draws: int,
    depth: int,
    images: int,
    shown: str,
    efforts: Sequence[Effort],
) -> Evidence:
    """x_l = √½ (x_{l-1} + F(x_{l-1})): equal moments of branch and skip path, and no training beyond 100."""
    batch = training_batch(context, shown, images)
    with seeded(context.seed):
        drawn = [
            probe(convert(dense(blocks, width, branch_layers=2), "sqrt2"), torch.randn(100, 100), ["signal"]).signal
            for _ in range(draws)
        ]
        network = convert(wide_resnet(depth, 1, batch.classes, batch.inputs.shape[1], initialization=None), "sqrt2")
        sums = _scaled_sums(network, batch.inputs)
        convolutional = probe(network, batch.inputs, ["signal"]).signal
    logs = np.log([table["sum_second_moment"] / table["skip_second_moment"].iloc[0] for table in drawn])
    grown = pd.DataFrame({"block": range(blocks + 1), "growth": np.exp([0.0, *logs.mean(0)]), "law": 1.0})
    falls = convolutional["sum_second_moment"].iloc[-1] / convolutional["skip_second_moment"].iloc[0]
    runs = first_epochs(context, {"sqrt(1/2)": "sqrt2", **_COMPARED}, efforts)
    facts = Scaled(
        sums=sums,
        per_block=over_draws(np.exp(logs[:, -1] / blocks)),
        ratio=over_draws(
            float((table["branch_second_moment"] / table["skip_second_moment"]).mean()) for table in drawn
        ),
        runs=runs,
    )
    trained = runs.summary(("method", "depth"), ("test_accuracy",))
    return Evidence(
        measured=pd.concat([_chosen(grown.assign(scheme="sqrt2")), trained], ignore_index=True),
        facts=facts,
        setup={
            "variance": f"dense, {blocks} blocks of width {width}, two ReLU → linear on every branch, {draws} draws",
            "sums": f"Wide-ResNet-{depth}-1 on {batch.provenance}",
            **setup_of(runs, efforts),
        },
        draw=lambda: GROWTH(grown.assign(scheme="sqrt2")),
        remarks=(
            f"In the Wide-ResNet the second moment falls to {falls:.2g} of the first block's over "
            f"{len(convolutional)} blocks: padding by zeros takes some of the branch at the images' borders.",
            "Depth 1000 at every rate is the claim of skipinit/table-3 and skipinit/table-5.",
            *runs.failures,
        ),
        reduction=runs.reduction,
    )


@dataclass(frozen=True)
class Calibrated:
    """Layer-sequential unit variance.

    Attributes:
        branches: variance of every branch's output on the calibration batch.
        layers: the same of every weight layer.
        rows: of every weight, as a matrix, compared with orthogonal ones.
        runs: see `normless_papers.fixup.depth.first_epochs`.
    """

    branches: Sequence[float]
    layers: Sequence[float]
    rows: Agreement
    runs: Runs


def _lsuv(found: Calibrated) -> list[Check]:
    return [
        *(
            check(
                f"On the calibration batch every {name} puts out variance 1, to the tolerance of 0.02.",
                len(variances) > 0 and all(abs(one - 1) <= 0.0201 for one in variances),
                smallest=min(variances),
                largest=max(variances),
                count=len(variances),
            )
            for name, variances in (("branch", found.branches), ("weight layer", found.layers))
        ),
        found.rows.check(),
        *_trainable(found.runs, "LSUV", "With LSUV"),
    ]


@artefact("fixup/lsuv", basis="training", checks=_lsuv)
def lsuv(context: Context, /, *, depth: int, images: int, shown: str, efforts: Sequence[Effort]) -> Evidence:
    """Orthogonal weights, divided until every layer and branch puts out variance 1; no training beyond 100 layers."""
    batch = training_batch(context, shown, images)
    with seeded(context.seed):
        original = wide_resnet(depth, 1, batch.classes, batch.inputs.shape[1], initialization=None)
        network = convert(original, "lsuv", batch.inputs)
        table = probe(network, batch.inputs, ["signal"], training=False).signal
        layers = _layer_variances(network, batch.inputs)
        rows = _orthogonality(network)
    runs = first_epochs(context, {"LSUV": "lsuv", **_COMPARED}, efforts)
    growth = [1.0, *(table["sum_variance"] / table["skip_variance"].iloc[0])]
    grown = pd.DataFrame({"scheme": "lsuv", "block": range(len(growth)), "growth": growth, "law": np.nan})
    kept = ["block", "skip_variance", "branch_variance", "sum_variance"]
    trained = runs.summary(("method", "depth"), ("test_accuracy",))
    return Evidence(
        measured=pd.concat([_chosen(table[kept]), trained], ignore_index=True),
        facts=Calibrated([float(one) for one in table["branch_variance"]], layers, rows, runs),
        setup={
            "calibrated": f"Wide-ResNet-{depth}-1 on {batch.provenance}, one draw of weights",
            **setup_of(runs, efforts),
        },
        draw=lambda: GROWTH(grown, y_label="variance after the sum / that before block 1"),
        remarks=(
            "The output of a residual block is read as that of its branch. After the sums the variance grows by "
            "about 1 with every block of a stage, as with batch normalization; the figure shows it.",
            *runs.failures,
        ),
        reduction=runs.reduction,
    )


def _trainable(runs: Runs, method: str, what: str) -> list[Check]:
    """Beyond 100 layers the baseline does not train at batch norm's rate, and Fixup does."""
    return [
        *deep_does_not_train(runs, method, what),
        *trains_as_batch_norm(runs, "Fixup", "With Fixup", LIMIT),
    ]


def _scaled_sums(network: nn.Module, images: Tensor) -> Agreement:
    """Every sum's output against √½ (skip + branch)."""
    sums = [network.get_submodule(block.sum or "") for block in residual_map(network).blocks]
    calls, _ = observed(network, sums, images)
    pairs = [(output, sqrt(0.5) * (sides[0] + sides[1])) for sides, output in calls]
    return worst_agreement("Every sum is √½ (x + F(x))", pairs, 1e-6)


def _layer_variances(network: nn.Module, images: Tensor) -> list[float]:
    """The variance of every weight layer's output on a batch."""
    layers = [one for one in network.modules() if isinstance(one, (nn.Conv2d, nn.Linear))]
    calls, _ = observed(network.eval(), layers, images)
    return [float(output.var(correction=0)) for _, output in calls]


def _orthogonality(network: nn.Module) -> Agreement:
    """Rows of every weight, as a matrix, or its columns where there are fewer: orthogonal, and all of one length."""
    pairs = []
    for layer in network.modules():
        if not isinstance(layer, (nn.Conv2d, nn.Linear)):
            continue
        matrix = layer.weight.detach().double().flatten(1)
        tall = len(matrix) > matrix.shape[1]
        gram = matrix.T @ matrix if tall else matrix @ matrix.T
        pairs.append((gram / gram.diagonal().mean(), torch.eye(len(gram), dtype=torch.float64)))
    return worst_agreement("Every weight is orthogonal up to its scale", pairs, 1e-4)


def _chosen(table: pd.DataFrame) -> pd.DataFrame:
    """About a dozen rows, the last among them."""
    step = max(1, len(table) // 12)
    return table.iloc[sorted({*range(0, len(table), step), len(table) - 1})]
