"""Fixup, proposition 1 and figure 2: positively homogeneous networks and parameter sets."""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from normless.models import resnet, resnet_cifar
from normless_lab.plots import QUIET, Plot, series_ink
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Data, Network, Seeds
from normless_papers.claims import Test, Tests, decided
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.theory.homogeneity import homogeneous_sets, input_homogeneity

FACTORS = (0.5, 2.0, 3.0, 0.7)
# Rounding errors are smaller.
NOT_ROUNDING = 1e-3

PLAIN, NORMED, BIASED = "no norm, no bias", "batch norm", "a bias of 0.1 in one layer"


def _proposition_1(table: pd.DataFrame) -> Tests:
    errors = table.groupby("network")["relative_error"]
    largest, smallest = errors.max(), errors.min()
    above = f"the relative error of f(a·x) = a·f(x) is above {NOT_ROUNDING:g} for every factor."
    rounding = "Without norms and biases f(a·x) = a·f(x), to rounding below 10⁻⁵."
    return {rounding: decided(largest[PLAIN] < 1e-5, largest_error=largest[PLAIN])} | {
        f"With {name} {above}": decided(smallest[name] > NOT_ROUNDING, smallest_error=smallest[name])
        for name in (NORMED, BIASED)
    }


@artefact("fixup/proposition-1", basis="measurement", checks=_proposition_1)
def proposition_1(context: Context, *, depth: Network[int], images: Seeds[int], side: Data[int]) -> Evidence:
    with seeded(context.seed):
        x = torch.randn(images, 3, side, side)
        networks = {
            PLAIN: convert(resnet_cifar(depth), "xavier"),
            NORMED: resnet_cifar(depth),
            BIASED: convert(resnet_cifar(depth), "xavier"),
        }
        layer = networks[BIASED].get_submodule("blocks.1.conv1")
        assert isinstance(layer, nn.Conv2d)
        layer.bias = nn.Parameter(torch.full((layer.out_channels,), 0.1))
        tables = [input_homogeneity(net, x, factors=FACTORS).assign(network=name) for name, net in networks.items()]
    table = pd.concat(tables, ignore_index=True)
    drawn = table.assign(set=table["network"] + ", a = " + table["factor"].map("{:g}".format))
    return Evidence(
        measured=table[["network", *(name for name in table.columns if name != "network")]],
        facts=table,
        setup={
            "network": f"ResNet-{depth} for CIFAR, Xavier weights, in training mode",
            "inputs": f"{images} random images of {side}×{side}",
            "factors": ", ".join(map(str, FACTORS)),
        },
        draw=lambda: SETS(drawn),
    )


def _figure_2(table: pd.DataFrame) -> Tests:
    names = {
        "stem": "The first convolution before max pooling",
        "head": "The fully connected layer before softmax",
        "projection": "A down-sampling layer together with a convolution of its branch, every such pair,",
    }
    alone = f"A convolution of a branch alone is not such a set: every relative error is above {NOT_ROUNDING:g}."
    tests: dict[str, Test] = {}
    for place, name in names.items():
        rows = table[table["place"] == place]
        numbers = {"largest_error": rows["relative_error"].max(), "sets": len(rows)}
        claim = f"{name} is a positively homogeneous set: f(aθ) = a·f(θ) to rounding."
        tests[claim] = decided(len(rows) > 0 and rows["homogeneous"].all(), **numbers)
    errors = table[table["place"] == "branch"]["relative_error"]
    above = len(errors) > 0 and (errors > NOT_ROUNDING).all()
    return {**tests, alone: decided(above, smallest_error=errors.min(), sets=len(errors))}


@artefact("fixup/figure-2", basis="measurement", checks=_figure_2)
def figure_2(context: Context, *, depth: Network[int], images: Seeds[int], side: Data[int]) -> Evidence:
    with seeded(context.seed):
        table = homogeneous_sets(convert(resnet(depth), "xavier"), torch.randn(images, 3, side, side))
    return Evidence(
        measured=table[["set", "place", "relative_error", "homogeneous"]],
        facts=table,
        setup={
            "network": f"ResNet-{depth} without normalization, Xavier weights",
            "inputs": f"{images} random images of {side}×{side}",
            "factors": "0.5 and 3",
        },
        draw=lambda: SETS(_shown(table)),
    )


# An error of exactly 0 is drawn here, below rounding errors.
_EXACT = 1e-9

SETS = Plot(
    "points",
    lambda sets: sets.assign(other=~sets["homogeneous"], relative_error=sets["relative_error"].clip(lower=_EXACT)),
    x="relative_error",
    y="set",
    by="homogeneous",
    hollow="other",
    inks={"True": series_ink(0), "False": QUIET},
    log="x",
    x_limits=(_EXACT / 2, 5),
    title="Homogeneous sets",
    x_label="relative error in f(aθ) = a f(θ)",
)


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """Return the homogeneous sets and about a dozen others."""
    others = table[~table["homogeneous"]]
    return pd.concat([table[table["homogeneous"]], others.iloc[:: max(1, len(others) // 12)]], ignore_index=True)
