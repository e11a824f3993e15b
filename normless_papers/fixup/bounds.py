"""Fixup, theorems 1 and 2: lower bounds on the gradients of homogeneous networks."""

from __future__ import annotations

from itertools import pairwise
from math import log
from typing import Any

import pandas as pd
import torch
from torch import nn

from normless import residual_map
from normless.models import dense, resnet, resnet_cifar
from normless.probes import Watcher, observe
from normless_lab.plots import Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import DataName, Network, Seeds
from normless_papers.claims import Estimate, Test, Tests, decades_over_draws, decided, exceeds, over_draws
from normless_papers.evidence import with_quantities
from normless_papers.networks.seeded_inputs import MeasuredBatch, convert, seeded, training_batch
from normless_papers.theory.homogeneity import InputGradientBounds, SetGradientBounds, candidate_sets

# Relative error of float32 inner products of long vectors, in units of the loss.
ROUNDING = 1e-3


def _homogeneous(depth: int, batch: MeasuredBatch) -> nn.Module:
    """Build a CIFAR ResNet without normalization and with a zero classifier bias, as homogeneity requires."""
    network = convert(resnet_cifar(depth, batch.classes, batch.inputs.shape[1]), "xavier")
    nn.init.zeros_(network.get_submodule("classifier").get_parameter("bias"))
    return network


def _violated(rows: pd.DataFrame, least: pd.Series) -> pd.Series:
    """Whether each gradient is smaller than its bound less rounding, where the bound is positive."""
    return (rows["gradient_norm"] < least)[rows["bound"] > 0]


def _below_input_bounds(rows: pd.DataFrame) -> pd.Series:
    slack = ROUNDING * (rows["loss"] + rows["entropy"] + 1) / rows["input_norm"]
    return _violated(rows, rows["bound"] - slack)


def _below_set_bounds(rows: pd.DataFrame) -> pd.Series:
    return _violated(rows, rows["bound"] * (1 - ROUNDING))


def _deviation(rows: pd.DataFrame) -> float:
    """Return the largest deviation from ⟨∂l/∂x, x⟩ = l - H(p), relative to the size of its terms."""
    size = rows["loss"] + rows["entropy"] + 1
    return float(((rows["inner_product"] - rows["loss"] + rows["entropy"]).abs() / size).max())


def _theorem_1(facts: tuple[pd.DataFrame, pd.DataFrame, int]) -> Tests:
    """Check the tables of `InputGradientBounds` over draws and at Fixup's initialization, given the class count."""
    rows, start, classes = facts
    deviation = _deviation(rows)
    at_start = (start[["loss", "entropy"]] - log(classes)).abs().max().max()
    gradients, violated = start["gradient_norm"], _below_input_bounds(rows)
    return {
        f"⟨∂l/∂x, x⟩ = l - H(p) for every block, example and draw, to {ROUNDING:g} of l + H(p) + 1.": decided(
            deviation <= ROUNDING, largest_deviation=deviation, cases=len(rows)
        ),
        "‖∂l/∂x‖ ≥ (l - H(p))/‖x‖ without exception, where that is above 0.": _without_exception(violated),
        "At Fixup's initialization it is 0 = 0: l = H(p) = log c, and no gradient below the classifier.": decided(
            (gradients == 0).all() and at_start < 1e-6, largest_gradient=gradients.max(), distance_from_log_c=at_start
        ),
    }


def _without_exception(violated: pd.Series, **numbers: float) -> Test:
    """Test that no bound is violated; undecided if no bound is positive."""
    holds = not violated.any() if len(violated) else None
    return decided(holds, violations=int(violated.sum()), cases=len(violated), **numbers)


@artefact("fixup/theorem-1", basis="measurement", checks=_theorem_1)
def theorem_1(
    context: Context, *, depth: Network[int], images: Seeds[int], draws: Seeds[int], data: DataName[str]
) -> Evidence:
    batch = training_batch(context, data, images)
    with seeded(context.seed):
        tables = [
            _table(InputGradientBounds(), _homogeneous(depth, batch), batch).assign(draw=draw)
            for draw in range(draws)
        ]
        fixup = convert(resnet_cifar(20, batch.classes, batch.inputs.shape[1]), "fixup")
        start = _table(InputGradientBounds(), fixup, batch)
    rows = pd.concat(tables, ignore_index=True)
    medians = rows.groupby("block")[["gradient_norm", "bound", "input_norm", "loss", "entropy"]].median()
    published = {
        "bound": _violations(_below_input_bounds(rows)),
        "identity": f"relative deviation at most {_deviation(rows):.2g}",
    }
    return Evidence(
        measured=with_quantities(published, medians.reset_index().assign(quantity="medians")),
        facts=(rows, start, batch.classes),
        setup={
            "network": f"ResNet-{depth} for CIFAR without normalization, Xavier weights, classifier without bias",
            "inputs": batch.provenance,
            "draws of weights": draws,
        },
        draw=lambda: BOUNDS(tables[0]),
    )


def _theorem_2(facts: tuple[pd.DataFrame, Estimate, pd.DataFrame]) -> Tests:
    """Check the tables of `SetGradientBounds`, G(θ) less its bound by the logits, and gradients by depth."""
    rows, gap, grown = facts
    deviation = ((rows["inner_product"] - rows["excess"]).abs() / (rows["excess"].abs() + 1)).max()
    norms = {
        key: decades_over_draws(draws) for key, draws in grown.groupby(["set", "depth"], sort=False)["gradient_norm"]
    }
    tests = {
        "(3) ‖∂l/∂θ‖ ≥ G(θ) for every draw and every homogeneous set, where G(θ) is above 0.": _without_exception(
            _below_set_bounds(rows), sets=rows[rows["bound"] > 0]["set"].nunique()
        ),
        f"Its premise ⟨∂l/∂θ, θ⟩ = mean(l - H(p)) holds for each set, to {ROUNDING:g} of |l - H| + 1.": decided(
            deviation <= ROUNDING, largest_deviation=deviation, cases=len(rows)
        ),
        "(4) E G(θ) ≥ (E max z - log c)/‖θ‖ over draws of the classifier.": exceeds(gap, 0.0),
    }
    grows = "The gradient norm of the {} grows with depth: log₁₀ of it is larger at {} layers than at {}."
    return tests | {
        grows.format(name, deeper, depth): exceeds(norms[name, deeper], norms[name, depth])
        for name in ("stem", "classifier")
        for depth, deeper in pairwise(sorted(grown["depth"].unique()))
    }


@artefact("fixup/theorem-2", basis="measurement", checks=_theorem_2)
def theorem_2(
    context: Context,
    *,
    depth: Network[int],
    images: Seeds[int],
    draws: Seeds[int],
    classifiers: Network[int],
    depths: Network[tuple[int, ...]],
    data: DataName[str],
) -> Evidence:
    batch = training_batch(context, data, images)
    tables = []
    with seeded(context.seed):
        for draw in range(draws):
            network = convert(resnet(depth, batch.classes, batch.inputs.shape[1]), "none")
            nn.init.zeros_(network.get_submodule("fc").get_parameter("bias"))
            # The bounds are positive only if the network is wrong with confidence, which takes large logits.
            nn.init.normal_(network.get_submodule("fc").get_parameter("weight"))
            tables.append(_table(SetGradientBounds(), network, batch).assign(draw=draw))
        expected = _over_classifiers(classifiers, images)
        by_depth = [_by_depth(layers, batch).assign(draw=draw) for draw in range(draws) for layers in depths]
    gap = over_draws(expected["bound"] - expected["logit_bound"])
    rows, grown = pd.concat(tables, ignore_index=True), pd.concat(by_depth, ignore_index=True)
    columns = ["gradient_norm", "bound", "inner_product", "excess"]
    medians = rows.groupby(["set", "place"], sort=False)[columns].median().reset_index()
    mean, bound = expected["bound"].mean(), expected["logit_bound"].mean()
    published = {
        "G(theta_ph)": _violations(_below_set_bounds(rows)),
        "expected": f"mean G {mean:.4g}, mean of its bound {bound:.4g}",
    }
    labels: dict[str, Any] = {"x_label": "set: stem, pairs, classifier", "y_label": "‖gradient‖ by the set"}
    return Evidence(
        measured=with_quantities(published, medians.assign(quantity="medians"), grown.assign(quantity="by depth")),
        facts=(rows, gap, grown),
        setup={
            "network (3)": f"ResNet-{depth} (ImageNet layout), no normalization, He, classifier N(0, 1) without bias",
            "network (4)": f"dense, 8 blocks of width 32, {classifiers} classifiers of N(0, 1/32)",
            "networks by depth": f"ResNets for CIFAR of depth {', '.join(map(str, depths))}, Xavier",
            "inputs": batch.provenance,
            "draws of weights": draws,
        },
        # The sets are numbered, as the plot's axis is that of blocks.
        draw=lambda: BOUNDS(rows.assign(block=pd.factorize(rows["set"])[0] + 1), **labels),
    )


def _violations(violated: pd.Series) -> str:
    return f"{int(violated.sum())} violations in {len(violated)}"


def _measured_and_bound(bounds: pd.DataFrame) -> pd.DataFrame:
    named = bounds.rename(columns={"gradient_norm": "measured", "bound": "lower bound"})
    table = named.melt("block", ["measured", "lower bound"], var_name="quantity", value_name="norm")
    # Only positive bounds are informative.
    return table[table["norm"] > 0]


BOUNDS = Plot(
    "points",
    _measured_and_bound,
    x="block",
    y="norm",
    by="quantity",
    summary="median",
    log="y",
    title="Gradients cannot be small",
    y_label="‖gradient‖ by the block's input",
)


def _table(watcher: Watcher, network: nn.Module, batch: MeasuredBatch) -> pd.DataFrame:
    observe(network, [watcher], batch.inputs, batch.targets)
    return watcher.table()


def _over_classifiers(count: int, images: int) -> pd.DataFrame:
    """Measure G of the stem and its bound for many classifiers drawn from a symmetric distribution."""
    network = convert(dense(8, 32, in_features=16), "none")
    nn.init.zeros_(network.classifier.bias)
    sets = candidate_sets(residual_map(network), single=False)[:1]
    batch = MeasuredBatch(torch.randn(images, 16), torch.randint(10, (images,)), 10, "random")
    rows = []
    for _ in range(count):
        nn.init.normal_(network.classifier.weight, std=32**-0.5)
        rows.append(_table(SetGradientBounds(sets), network, batch))
    return pd.concat(rows, ignore_index=True)


def _by_depth(depth: int, batch: MeasuredBatch) -> pd.DataFrame:
    table = _table(SetGradientBounds(), _homogeneous(depth, batch), batch)
    ends = table[table["set"].isin(["stem", "classifier"])]
    return ends[["set", "place", "gradient_norm", "bound", "excess"]].assign(depth=depth)
