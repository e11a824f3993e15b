"""Proposition 1 and figure 2: positively homogeneous functions, and the parameter sets a ResNet is homogeneous in."""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from normless import convert
from normless.models import resnet, resnet_cifar
from normless.papers.artefact import Context, artefact
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.verdict import check
from normless.probes.homogeneous.homogeneity import homogeneous_sets, input_homogeneity
from normless.report.probes.homogeneity import homogeneity_of_sets

FACTORS = (0.5, 2.0, 3.0, 0.7)
# An error that no rounding makes.
NOT_ROUNDING = 1e-3


@artefact("fixup/proposition-1", basis="measurement")
def proposition_1(context: Context, *, depth: int, images: int, side: int) -> Evidence:
    """f(a·x) = a·f(x) for a > 0 without norms and biases, to rounding; not with either."""
    with seeded(context.seed):
        x = torch.randn(images, 3, side, side)
        networks = {
            "no norm, no bias": convert(resnet_cifar(depth), "xavier"),
            "batch norm": resnet_cifar(depth),
            "a bias of 0.1 in one layer": convert(resnet_cifar(depth), "xavier"),
        }
        layer = networks["a bias of 0.1 in one layer"].get_submodule("blocks.1.conv1")
        assert isinstance(layer, nn.Conv2d)
        layer.bias = nn.Parameter(torch.full((layer.out_channels,), 0.1))
        tables = [input_homogeneity(one, x, factors=FACTORS).assign(network=name) for name, one in networks.items()]
    table = pd.concat(tables, ignore_index=True)
    errors = table.groupby("network")["relative_error"]
    bare = table[table["network"] == "no norm, no bias"]
    exact = bare[bare["factor"].isin([0.5, 2.0])]["relative_error"].max()
    drawn = table.assign(set=table["network"] + ", a = " + table["factor"].map("{:g}".format))
    return Evidence(
        measured=table[["network", *(name for name in table.columns if name != "network")]],
        checks=(
            check(
                "Without norms and biases f(a·x) = a·f(x), to rounding below 10⁻⁵.",
                bool(errors.max()["no norm, no bias"] < 1e-5),
                largest_error=errors.max()["no norm, no bias"],
            ),
            check(
                "By powers of two, which do not round, it is so bit for bit.", bool(exact == 0), largest_error=exact
            ),
            *(
                check(
                    f"With {name} it is not: the relative error is above {NOT_ROUNDING:g} for every factor.",
                    bool(errors.min()[name] > NOT_ROUNDING),
                    smallest_error=errors.min()[name],
                )
                for name in ("batch norm", "a bias of 0.1 in one layer")
            ),
        ),
        setup={
            "network": f"ResNet-{depth} for CIFAR, Xavier weights, in training mode",
            "inputs": f"{images} random images of {side}×{side}",
            "factors": ", ".join(map(str, FACTORS)),
            "seed": context.seed,
        },
        draw=lambda: homogeneity_of_sets(drawn),
    )


@artefact("fixup/figure-2", basis="measurement")
def figure_2(context: Context, *, depth: int, images: int, side: int) -> Evidence:
    """Stem; classifier; a down-sampling layer with one of the branch beside it; and no layer of a branch alone."""
    with seeded(context.seed):
        table = homogeneous_sets(convert(resnet(depth), "xavier"), torch.randn(images, 3, side, side))
    worst, best = table.groupby("place")["relative_error"].max(), table.groupby("place")["relative_error"].min()
    every = table.groupby("place")["homogeneous"].all()
    names = {
        "stem": "The first convolution before max pooling",
        "head": "The fully connected layer before softmax",
        "projection": "A down-sampling layer together with a convolution of its branch, every such pair,",
    }
    alone = table[table["place"].isin(["branch", "skip"])]
    identity = alone[alone["place"] == "branch"]
    return Evidence(
        measured=table[["set", "place", "relative_error", "homogeneous"]],
        checks=(
            *(
                check(
                    f"{name} is a positively homogeneous set: f(aθ) = a·f(θ) to rounding.",
                    bool(every.get(place, False)),
                    largest_error=worst.get(place, float("nan")),
                    sets=int((table["place"] == place).sum()),
                )
                for place, name in names.items()
            ),
            check(
                f"No convolution of a branch alone is one: every relative error is above {NOT_ROUNDING:g}.",
                bool((identity["relative_error"] > NOT_ROUNDING).all()),
                smallest_error=best.get("branch", float("nan")),
                sets=len(identity),
            ),
        ),
        setup={
            "network": f"ResNet-{depth} without normalization, Xavier weights",
            "inputs": f"{images} random images of {side}×{side}",
            "factors": "0.5 and 3",
            "seed": context.seed,
        },
        draw=lambda: homogeneity_of_sets(_shown(table)),
    )


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """The homogeneous sets and as many of the others as a figure holds."""
    others = table[~table["homogeneous"]]
    return pd.concat([table[table["homogeneous"]], others.iloc[:: max(1, len(others) // 12)]], ignore_index=True)
