"""Theorems 1 and 2: gradients of homogeneous networks are bounded from below by how wrong the network is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log

import pandas as pd
import torch
from torch import Tensor, nn

from normless import residual_map
from normless.models import dense, resnet, resnet_cifar
from normless.plots import Plot
from normless.probes import Watcher, observe
from normless.sweeps import convert
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, decades_over_draws, larger, over_draws
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
    """What theorem 1 compares.

    Attributes:
        rows: of every draw, as `InputGradientBounds.table`.
        start: the same at Fixup's initialization.
        classes: of the data set.
    """

    rows: pd.DataFrame
    start: pd.DataFrame
    classes: int

    @property
    def deviation(self) -> pd.Series:
        """Of the identity; rounding is that of the logits: of two large terms the difference is not exact."""
        size = self.rows["loss"] + self.rows["entropy"] + 1
        return (self.rows["inner_product"] - self.rows["loss"] + self.rows["entropy"]).abs() / size

    @property
    def bounded(self) -> pd.DataFrame:
        """The rows whose bound is above 0, where it says something, with `violated`."""
        rows = self.rows[self.rows["bound"] > 0]
        slack = ROUNDING * (rows["loss"] + rows["entropy"] + 1) / rows["input_norm"]
        return rows.assign(violated=rows["gradient_norm"] < rows["bound"] - slack)


def _theorem_1(found: InputBounds) -> list[Check]:
    bounded, start = found.bounded, found.start
    at_start = (start[["loss", "entropy"]] - log(found.classes)).abs().max().max()
    return [
        check(
            f"⟨∂l/∂x, x⟩ = l - H(p) for every block, example and draw, to {ROUNDING:g} of l + H(p) + 1.",
            bool(found.deviation.max() <= ROUNDING),
            largest_deviation=found.deviation.max(),
            cases=len(found.rows),
        ),
        check(
            "‖∂l/∂x‖ ≥ (l - H(p))/‖x‖ without exception, where that is above 0.",
            not bounded["violated"].any() if len(bounded) else None,
            violations=int(bounded["violated"].sum()),
            cases=len(bounded),
        ),
        check(
            "At Fixup's initialization it is 0 = 0: l = H(p) = log c, and no gradient below the classifier.",
            bool((start["gradient_norm"] == 0).all() and at_start < 1e-6),
            largest_gradient=start["gradient_norm"].max(),
            distance_from_log_c=at_start,
        ),
    ]


@artefact("fixup/theorem-1", basis="measurement", checks=_theorem_1)
def theorem_1(context: Context, *, depth: int, images: int, draws: int, data: str) -> Evidence:
    """⟨∂l/∂x, x⟩ = l - H(p), hence ‖∂l/∂x‖ ≥ (l - H(p))/‖x‖, at every block's input; 0 = 0 with Fixup."""
    batch = training_batch(context, data, images)
    tables = []
    with seeded(context.seed):
        for draw in range(draws):
            table = _table(InputGradientBounds(), _homogeneous(depth, batch, "xavier"), batch.inputs, batch.targets)
            tables.append(table.assign(draw=draw))
        fixup = convert(resnet_cifar(20, batch.classes, batch.inputs.shape[1]), "fixup")
        start = _table(InputGradientBounds(), fixup, batch.inputs, batch.targets)
    facts = InputBounds(pd.concat(tables, ignore_index=True), start, batch.classes)
    rows, bounded = facts.rows, facts.bounded
    by_block = rows.groupby("block")[["gradient_norm", "bound", "input_norm", "loss", "entropy"]].median()
    published = pd.DataFrame(
        [
            {"quantity": "bound", "value": f"{int(bounded['violated'].sum())} violations in {len(bounded)}"},
            {"quantity": "identity", "value": f"relative deviation at most {facts.deviation.max():.2g}"},
        ]
    )
    return Evidence(
        measured=pd.concat([published, by_block.reset_index().assign(quantity="medians")], ignore_index=True),
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
    """What theorem 2 compares.

    Attributes:
        rows: of every draw and set, as `SetGradientBounds.table`.
        gap: G(θ) less (max z - log c)/‖θ‖ of the stem, over draws of the classifier.
        grown: of draws at several depths, `set`, `depth`, `draw` and `gradient_norm`.
    """

    rows: pd.DataFrame
    gap: Estimate
    grown: pd.DataFrame


def _theorem_2(found: SetBounds) -> list[Check]:
    rows = found.rows
    bounded = rows[rows["bound"] > 0]
    deviation = ((rows["inner_product"] - rows["excess"]).abs() / (rows["excess"].abs() + 1)).max()
    return [
        check(
            "(3) ‖∂l/∂θ‖ ≥ G(θ) for every draw and every homogeneous set, where G(θ) is above 0.",
            not _violated(bounded).any() if len(bounded) else None,
            violations=int(_violated(bounded).sum()),
            cases=len(bounded),
            sets=bounded["set"].nunique(),
        ),
        check(
            f"Its ground, ⟨∂l/∂θ, θ⟩ = mean(l - H(p)), holds for each, to {ROUNDING:g} of |l - H| + 1.",
            bool(deviation <= ROUNDING),
            largest_deviation=deviation,
            cases=len(rows),
        ),
        larger("(4) E G(θ) ≥ (E max z - log c)/‖θ‖ over draws of the classifier.", found.gap, Estimate(0.0)),
        *_growth(found.grown),
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
            tables.append(_table(SetGradientBounds(), network, batch.inputs, batch.targets).assign(draw=draw))
        expected = _over_classifiers(classifiers, images)
        grown = [_by_depth(one, batch).assign(draw=draw) for draw in range(draws) for one in depths]
    gap = over_draws(expected["bound"] - expected["logit_bound"])
    facts = SetBounds(pd.concat(tables, ignore_index=True), gap, pd.concat(grown, ignore_index=True))
    rows = facts.rows
    kept = ["gradient_norm", "bound", "inner_product", "excess"]
    sets = rows.groupby(["set", "place"], sort=False)[kept].median().reset_index().assign(quantity="medians")
    violations = int(_violated(rows[rows["bound"] > 0]).sum())
    published = pd.DataFrame(
        [
            {"quantity": "G(theta_ph)", "value": f"{violations} violations in {int((rows['bound'] > 0).sum())}"},
            {"quantity": "expected", "value": f"mean G {expected['bound'].mean():.4g}, "
             f"mean of its bound {expected['logit_bound'].mean():.4g}"},
        ]
    )  # fmt: skip
    by_depth = facts.grown.assign(quantity="by depth")
    return Evidence(
        measured=pd.concat([published, sets, by_depth], ignore_index=True),
        facts=facts,
        setup={
            "network (3)": f"ResNet-{depth} (ImageNet layout), no normalization, He, classifier N(0, 1) without bias",
            "network (4)": f"dense, 8 blocks of width 32, {classifiers} classifiers of N(0, 1/32)",
            "networks by depth": f"ResNets for CIFAR of depth {', '.join(map(str, depths))}, Xavier",
            "inputs": batch.provenance,
            "draws of weights": draws,
        },
        on=("quantity",),
        draw=lambda: BOUNDS(_numbered(rows), x_label="set: stem, pairs, classifier", y_label="‖gradient‖ by the set"),
    )


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


def _table(watcher: Watcher, network: nn.Module, inputs: Tensor, targets: Tensor) -> pd.DataFrame:
    observe(network, [watcher], inputs, targets)
    return watcher.table()


def _violated(rows: pd.DataFrame) -> pd.Series:
    """Whether a set's gradient is smaller than its bound, by more than rounding."""
    return rows["gradient_norm"] < rows["bound"] - ROUNDING * rows["bound"].abs()


def _over_classifiers(count: int, images: int) -> pd.DataFrame:
    """G of the stem and its bound, for many classifiers drawn from a symmetric distribution."""
    network = convert(dense(8, 32, in_features=16), "none")
    nn.init.zeros_(network.classifier.bias)
    sets = candidate_sets(residual_map(network), single=False)[:1]
    inputs, targets = torch.randn(images, 16), torch.randint(10, (images,))
    rows = []
    for _ in range(count):
        nn.init.normal_(network.classifier.weight, std=32**-0.5)
        rows.append(_table(SetGradientBounds(sets), network, inputs, targets))
    return pd.concat(rows, ignore_index=True)


def _by_depth(depth: int, batch: MeasuredBatch) -> pd.DataFrame:
    table = _table(SetGradientBounds(), _homogeneous(depth, batch, "xavier"), batch.inputs, batch.targets)
    chosen = table[table["set"].isin(["stem", "classifier"])]
    return chosen[["set", "place", "gradient_norm", "bound", "excess"]].assign(depth=depth)


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


def _numbered(rows: pd.DataFrame) -> pd.DataFrame:
    """A number for every set in place of a block."""
    order = {name: place for place, name in enumerate(rows["set"].unique(), 1)}
    return rows.assign(block=rows["set"].map(order))
