"""Theorems 1 and 2: gradients of homogeneous networks are bounded from below by how wrong the network is."""

from __future__ import annotations

from math import log

import pandas as pd
import torch
from torch import nn

from normless import convert, residual_map
from normless.models import dense, resnet, resnet_cifar
from normless.papers.artefact import Context, artefact
from normless.papers.batches import MeasuredBatch, training_batch
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.verdict import Check, Estimate, check, larger
from normless.probes.homogeneous.gradient_bounds import input_bound_table
from normless.probes.homogeneous.homogeneity import candidate_sets
from normless.probes.homogeneous.set_bounds import set_bound_table
from normless.report.probes.gradient_bounds import gradient_bounds_against_block

# Float32: inner products of long vectors, relative to the loss.
ROUNDING = 1e-3


def _bare(depth: int, batch: MeasuredBatch, scheme: str) -> nn.Module:
    """A CIFAR ResNet without normalization whose classifier has a zero bias, as homogeneity wants."""
    network = convert(resnet_cifar(depth, batch.classes, batch.inputs.shape[1]), scheme)
    nn.init.zeros_(network.get_submodule("classifier").get_parameter("bias"))
    return network


@artefact("fixup/theorem-1", basis="measurement")
def theorem_1(context: Context, *, depth: int, images: int, draws: int, data: str) -> Evidence:
    """⟨∂l/∂x, x⟩ = l - H(p), hence ‖∂l/∂x‖ ≥ (l - H(p))/‖x‖, at every block's input; 0 = 0 with Fixup."""
    batch = training_batch(context, data, images)
    tables = []
    with seeded(context.seed):
        for draw in range(draws):
            table = input_bound_table(_bare(depth, batch, "xavier"), batch.inputs, batch.targets)
            tables.append(table.assign(draw=draw))
        start = input_bound_table(
            convert(resnet_cifar(20, batch.classes, batch.inputs.shape[1]), "fixup"), batch.inputs, batch.targets
        )
    rows = pd.concat(tables, ignore_index=True)
    excess = rows["loss"] - rows["entropy"]
    # Rounding is that of the logits: of two large terms the difference is not exact.
    deviation = (rows["inner_product"] - excess).abs() / (rows["loss"] + rows["entropy"] + 1)
    slack = ROUNDING * (rows["loss"] + rows["entropy"] + 1) / rows["input_norm"]
    violated = rows["gradient_norm"] < rows["bound"] - slack
    by_block = rows.groupby("block")[["gradient_norm", "bound", "input_norm", "loss", "entropy"]].median()
    published = pd.DataFrame(
        [
            {"quantity": "bound", "value": f"{int(violated.sum())} violations in {len(rows)}"},
            {"quantity": "identity", "value": f"relative deviation at most {deviation.max():.2g}"},
        ]
    )
    at_start = (start["loss"] - log(batch.classes)).abs().max()
    return Evidence(
        measured=pd.concat([published, by_block.reset_index().assign(quantity="medians")], ignore_index=True),
        checks=(
            check(
                f"⟨∂l/∂x, x⟩ = l - H(p) for every block, example and draw, to {ROUNDING:g} of l + H(p) + 1.",
                bool(deviation.max() <= ROUNDING),
                largest_deviation=deviation.max(),
                cases=len(rows),
            ),
            check(
                "‖∂l/∂x‖ ≥ (l - H(p))/‖x‖ without exception.",
                not violated.any(),
                violations=int(violated.sum()),
                cases=len(rows),
                bounds_above_0=float((rows["bound"] > 0).mean()),
            ),
            check(
                "At Fixup's initialization it is 0 = 0: l = H(p) = log c, and no gradient below the classifier.",
                bool((start["gradient_norm"] == 0).all() and at_start < 1e-6),
                largest_gradient=start["gradient_norm"].max(),
                loss_less_log_c=at_start,
            ),
        ),
        setup={
            "network": f"ResNet-{depth} for CIFAR without normalization, Xavier weights, classifier without bias",
            "inputs": batch.provenance,
            "draws of weights": draws,
            "seed": context.seed,
        },
        on=("quantity",),
        draw=lambda: gradient_bounds_against_block(tables[0]),
    )


@artefact("fixup/theorem-2", basis="measurement")
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
            tables.append(set_bound_table(network, batch.inputs, batch.targets).assign(draw=draw))
        expected = _over_classifiers(classifiers, images)
        grown = pd.concat([_by_depth(one, batch) for one in depths], ignore_index=True)
    rows = pd.concat(tables, ignore_index=True)
    kept = ["set", "place", "gradient_norm", "bound", "inner_product", "excess"]
    sets = rows.groupby(["set", "place"], sort=False)[kept[2:]].median().reset_index().assign(quantity="medians")
    gap = Estimate(float((expected["bound"] - expected["logit_bound"]).mean()), _std(expected), len(expected))
    published = pd.DataFrame(
        [
            {"quantity": "G(theta_ph)", "value": f"{int(_violated(rows).sum())} violations in {len(rows)}"},
            {"quantity": "expected", "value": f"mean G {expected['bound'].mean():.4g}, "
             f"mean of its bound {expected['logit_bound'].mean():.4g}"},
        ]
    )  # fmt: skip
    return Evidence(
        measured=pd.concat([published, sets, grown.assign(quantity="by depth")], ignore_index=True),
        checks=(
            *_bound_3(rows),
            larger("(4) E G(θ) ≥ (E max z - log c)/‖θ‖ over draws of the classifier.", gap, Estimate(0.0)),
            *_growth(grown),
        ),
        setup={
            "network (3)": f"ResNet-{depth} (ImageNet layout), no normalization, He, classifier N(0, 1) without bias",
            "network (4)": f"dense, 8 blocks of width 32, {classifiers} classifiers of N(0, 1/32)",
            "networks by depth": f"ResNets for CIFAR of depth {', '.join(map(str, depths))}, Xavier",
            "inputs": batch.provenance,
            "draws of weights": draws,
            "seed": context.seed,
        },
        on=("quantity",),
        draw=lambda: gradient_bounds_against_block(
            _numbered(rows), across="set: stem, pairs, classifier", by="the set"
        ),
    )


def _violated(rows: pd.DataFrame) -> pd.Series:
    """Whether a set's gradient is smaller than its bound, by more than rounding."""
    return rows["gradient_norm"] < rows["bound"] - ROUNDING * rows["bound"].abs()


def _bound_3(rows: pd.DataFrame) -> list[Check]:
    violated = _violated(rows)
    deviation = (rows["inner_product"] - rows["excess"]).abs() / (rows["excess"].abs() + 1)
    return [
        check(
            "(3) ‖∂l/∂θ‖ ≥ G(θ) for every draw and every homogeneous set.",
            not violated.any(),
            violations=int(violated.sum()),
            cases=len(rows),
            sets=rows["set"].nunique(),
            bounds_above_0=float((rows["bound"] > 0).mean()),
        ),
        check(
            f"Its ground, ⟨∂l/∂θ, θ⟩ = mean(l - H(p)), holds for each, to {ROUNDING:g} of |l - H| + 1.",
            bool(deviation.max() <= ROUNDING),
            largest_deviation=deviation.max(),
        ),
    ]


def _std(expected: pd.DataFrame) -> float:
    return float((expected["bound"] - expected["logit_bound"]).std(ddof=1))


def _over_classifiers(count: int, images: int) -> pd.DataFrame:
    """G of the stem and its bound, for many classifiers drawn from a symmetric distribution."""
    network = convert(dense(8, 32, in_features=16), "none")
    nn.init.zeros_(network.classifier.bias)
    found = residual_map(network)
    sets = candidate_sets(found, single=False)[:1]
    inputs, targets = torch.randn(images, 16), torch.randint(10, (images,))
    rows = []
    for _ in range(count):
        nn.init.normal_(network.classifier.weight, std=32**-0.5)
        rows.append(set_bound_table(network, inputs, targets, found, sets=sets))
    return pd.concat(rows, ignore_index=True)


def _by_depth(depth: int, batch: MeasuredBatch) -> pd.DataFrame:
    table = set_bound_table(_bare(depth, batch, "xavier"), batch.inputs, batch.targets)
    chosen = table[table["set"].isin(["stem", "classifier"])]
    return chosen[["set", "place", "gradient_norm", "bound", "excess"]].assign(depth=depth)


def _growth(grown: pd.DataFrame) -> list[Check]:
    checks = []
    for name, rows in grown.groupby("set", sort=False):
        norms = rows.sort_values("depth")["gradient_norm"]
        checks.append(
            check(
                f"The gradient norm of the {name} grows with depth.",
                bool(norms.is_monotonic_increasing and norms.iloc[-1] > norms.iloc[0]),
                **{f"depth_{depth}": norm for depth, norm in zip(sorted(rows["depth"]), norms, strict=True)},
            )
        )
    return checks


def _numbered(rows: pd.DataFrame) -> pd.DataFrame:
    """A number for every set in the place of a block."""
    order = {name: place for place, name in enumerate(rows["set"].unique(), 1)}
    return rows.assign(block=rows["set"].map(order))
