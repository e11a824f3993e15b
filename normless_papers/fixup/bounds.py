"""Theorems 1 and 2: gradients of homogeneous networks are bounded from below by how wrong the network is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any

import pandas as pd
import torch
from torch import nn

from normless import residual_map
from normless.models import dense, resnet, resnet_cifar
from normless.plots import Plot
from normless.probes import Watcher, observe
from normless.sweeps import convert
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, decades_over_draws, larger, over_draws
from normless_papers.evidence import with_quantities
from normless_papers.seeded_inputs import MeasuredBatch, seeded, training_batch
from normless_papers.theory.gradient_bounds import InputGradientBounds, SetGradientBounds
from normless_papers.theory.parameter_sets import candidate_sets

# Float32: inner products of long vectors, relative to the loss.
ROUNDING = 1e-3


def _homogeneous(depth: int, batch: MeasuredBatch, scheme: str) -> nn.Module:
    """A CIFAR ResNet without normalization whose classifier has a zero bias, as homogeneity wants."""
    network = convert(resnet_cifar(depth, batch.classes, batch.inputs.shape[1]), scheme)
    nn.init.zeros_(network.get_submodule("classifier").get_parameter("bias"))
    return network


@dataclass(frozen=True)
class InputBounds:
    """What theorem 1 compares: `InputGradientBounds.table` of every draw, and at Fixup's initialization."""

    rows: pd.DataFrame
    start: pd.DataFrame
    classes: int

    @property
    def deviation(self) -> float:
        """Of the identity; rounding is that of the logits: of two large terms the difference is not exact."""
        size = self.rows["loss"] + self.rows["entropy"] + 1
        return float(((self.rows["inner_product"] - self.rows["loss"] + self.rows["entropy"]).abs() / size).max())

    @property
    def violated(self) -> pd.Series:
        """Whether a gradient is smaller than its bound, where that is above 0 and says something."""
        rows = self.rows[self.rows["bound"] > 0]
        slack = ROUNDING * (rows["loss"] + rows["entropy"] + 1) / rows["input_norm"]
        return rows["gradient_norm"] < rows["bound"] - slack


def _theorem_1(bounds: InputBounds) -> list[Check]:
    start = bounds.start
    at_start = (start[["loss", "entropy"]] - log(bounds.classes)).abs().max().max()
    return [
        check(
            f"⟨∂l/∂x, x⟩ = l - H(p) for every block, example and draw, to {ROUNDING:g} of l + H(p) + 1.",
            bounds.deviation <= ROUNDING,
            largest_deviation=bounds.deviation,
            cases=len(bounds.rows),
        ),
        _without_exception("‖∂l/∂x‖ ≥ (l - H(p))/‖x‖ without exception, where that is above 0.", bounds.violated),
        check(
            "At Fixup's initialization it is 0 = 0: l = H(p) = log c, and no gradient below the classifier.",
            bool((start["gradient_norm"] == 0).all() and at_start < 1e-6),
            largest_gradient=start["gradient_norm"].max(),
            distance_from_log_c=at_start,
        ),
    ]


def _without_exception(claim: str, violated: pd.Series, **numbers: float) -> Check:
    """That no bound is violated; undecided where no bound is above 0."""
    holds = not violated.any() if len(violated) else None
    return check(claim, holds, violations=int(violated.sum()), cases=len(violated), **numbers)


@artefact("fixup/theorem-1", basis="measurement", checks=_theorem_1)
def theorem_1(context: Context, *, depth: int, images: int, draws: int, data: str) -> Evidence:
    """⟨∂l/∂x, x⟩ = l - H(p), hence ‖∂l/∂x‖ ≥ (l - H(p))/‖x‖, at every block's input; 0 = 0 with Fixup."""
    batch = training_batch(context, data, images)
    with seeded(context.seed):
        tables = [
            _table(InputGradientBounds(), _homogeneous(depth, batch, "xavier"), batch).assign(draw=draw)
            for draw in range(draws)
        ]
        fixup = convert(resnet_cifar(20, batch.classes, batch.inputs.shape[1]), "fixup")
        start = _table(InputGradientBounds(), fixup, batch)
    facts = InputBounds(pd.concat(tables, ignore_index=True), start, batch.classes)
    medians = facts.rows.groupby("block")[["gradient_norm", "bound", "input_norm", "loss", "entropy"]].median()
    published = {
        "bound": _violations(facts.violated),
        "identity": f"relative deviation at most {facts.deviation:.2g}",
    }
    return Evidence(
        measured=with_quantities(published, medians.reset_index().assign(quantity="medians")),
        facts=facts,
        setup={
            "network": f"ResNet-{depth} for CIFAR without normalization, Xavier weights, classifier without bias",
            "inputs": batch.provenance,
            "draws of weights": draws,
        },
        on=("quantity",),
        draw=lambda: BOUNDS(tables[0]),
    )


@dataclass(frozen=True)
class SetBounds:
    """What theorem 2 compares."""

    rows: pd.DataFrame  # of every draw and set, as `SetGradientBounds.table`
    gap: Estimate  # G(θ) less (max z - log c)/‖θ‖ of the stem, over draws of the classifier
    grown: pd.DataFrame  # of draws at several depths: `set`, `depth`, `draw` and `gradient_norm`

    @property
    def violated(self) -> pd.Series:
        """Whether a set's gradient is smaller than its bound, by more than rounding, where that is above 0."""
        rows = self.rows[self.rows["bound"] > 0]
        return rows["gradient_norm"] < rows["bound"] * (1 - ROUNDING)


def _theorem_2(bounds: SetBounds) -> list[Check]:
    rows = bounds.rows
    deviation = ((rows["inner_product"] - rows["excess"]).abs() / (rows["excess"].abs() + 1)).max()
    return [
        _without_exception(
            "(3) ‖∂l/∂θ‖ ≥ G(θ) for every draw and every homogeneous set, where G(θ) is above 0.",
            bounds.violated,
            sets=rows[rows["bound"] > 0]["set"].nunique(),
        ),
        check(
            f"Its ground, ⟨∂l/∂θ, θ⟩ = mean(l - H(p)), holds for each, to {ROUNDING:g} of |l - H| + 1.",
            bool(deviation <= ROUNDING),
            largest_deviation=deviation,
            cases=len(rows),
        ),
        larger("(4) E G(θ) ≥ (E max z - log c)/‖θ‖ over draws of the classifier.", bounds.gap, Estimate(0.0)),
        *_growth(bounds.grown),
    ]


@artefact("fixup/theorem-2", basis="measurement", checks=_theorem_2)
def theorem_2(
    context: Context, *, depth: int, images: int, draws: int, classifiers: int, depths: tuple[int, ...], data: str
) -> Evidence:
    """‖∂l/∂θ‖ ≥ mean(l - H(p))/‖θ‖ for every homogeneous set; over classifiers its mean has a bound by the logits."""
    batch = training_batch(context, data, images)
    tables = []
    with seeded(context.seed):
        for draw in range(draws):
            network = convert(resnet(depth, batch.classes, batch.inputs.shape[1]), "none")
            nn.init.zeros_(network.get_submodule("fc").get_parameter("bias"))
            # Logits large enough for the network to be wrong with confidence: only then do the bounds say something.
            nn.init.normal_(network.get_submodule("fc").get_parameter("weight"))
            tables.append(_table(SetGradientBounds(), network, batch).assign(draw=draw))
        expected = _over_classifiers(classifiers, images)
        grown = [_by_depth(layers, batch).assign(draw=draw) for draw in range(draws) for layers in depths]
    gap = over_draws(expected["bound"] - expected["logit_bound"])
    facts = SetBounds(pd.concat(tables, ignore_index=True), gap, pd.concat(grown, ignore_index=True))
    columns = ["gradient_norm", "bound", "inner_product", "excess"]
    medians = facts.rows.groupby(["set", "place"], sort=False)[columns].median().reset_index()
    mean, bound = expected["bound"].mean(), expected["logit_bound"].mean()
    published = {
        "G(theta_ph)": _violations(facts.violated),
        "expected": f"mean G {mean:.4g}, mean of its bound {bound:.4g}",
    }
    tidy = (medians.assign(quantity="medians"), facts.grown.assign(quantity="by depth"))
    labels: dict[str, Any] = {"x_label": "set: stem, pairs, classifier", "y_label": "‖gradient‖ by the set"}
    return Evidence(
        measured=with_quantities(published, *tidy),
        facts=facts,
        setup={
            "network (3)": f"ResNet-{depth} (ImageNet layout), no normalization, He, classifier N(0, 1) without bias",
            "network (4)": f"dense, 8 blocks of width 32, {classifiers} classifiers of N(0, 1/32)",
            "networks by depth": f"ResNets for CIFAR of depth {', '.join(map(str, depths))}, Xavier",
            "inputs": batch.provenance,
            "draws of weights": draws,
        },
        on=("quantity",),
        # A number for every set in place of a block.
        draw=lambda: BOUNDS(facts.rows.assign(block=pd.factorize(facts.rows["set"])[0] + 1), **labels),
    )


def _violations(violated: pd.Series) -> str:
    return f"{int(violated.sum())} violations in {len(violated)}"


def _measured_and_bound(bounds: pd.DataFrame) -> pd.DataFrame:
    named = bounds.rename(columns={"gradient_norm": "measured", "bound": "lower bound"})
    table = named.melt("block", ["measured", "lower bound"], var_name="quantity", value_name="norm")
    # A bound that is not positive says nothing.
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
    """G of the stem and its bound, for many classifiers drawn from a symmetric distribution."""
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
    table = _table(SetGradientBounds(), _homogeneous(depth, batch, "xavier"), batch)
    ends = table[table["set"].isin(["stem", "classifier"])]
    return ends[["set", "place", "gradient_norm", "bound", "excess"]].assign(depth=depth)


def _growth(grown: pd.DataFrame) -> list[Check]:
    depths = sorted(grown["depth"].unique())
    norms = {
        (name, depth): decades_over_draws(rows["gradient_norm"])
        for (name, depth), rows in grown.groupby(["set", "depth"], sort=False)
    }
    return [
        larger(
            f"The gradient norm of the {name} grows with depth: log₁₀ of it is larger at {deeper} layers than at "
            f"{depth}.",
            norms[name, deeper],
            norms[name, depth],
        )
        for name in ("stem", "classifier")
        for depth, deeper in pairwise(depths)
    ]
