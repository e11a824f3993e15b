"""The design goal: a step of gradient descent moves the function by Θ(η), whatever the depth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import pandas as pd
import torch

from normless import residual_map
from normless.models import dense, resnet
from normless.plots import Plot
from normless.sweeps import convert
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.claims import Check, Estimate, check, difference, larger, over_draws, within
from normless_papers.probes import function_update_table
from normless_papers.seeded_inputs import seeded

WITH_DEPTH = {
    "none": "With standard initialization",
    "sqrt2": "With sums times √½",
    "lsuv": "With LSUV",
}
BOUNDED = {"fixup": "With Fixup", "fixup(zero=False)": "With Fixup without rule 1"}
RATE, STEP_RATE = 1e-5, 0.01
# Of networks on ImageNet in the paper.
SHORTCUT = {"convolutions": 5, "fully_connected": 1}


# By which ‖∆f‖/η of two depths may differ and be the same size.
FACTOR = 1.5


@dataclass(frozen=True)
class Updates:
    """What was measured.

    Attributes:
        sizes: log ‖∆f‖/η over draws, by scheme, steps before and number of blocks; infinite where any overflowed.
        shortcuts: weight layers on the shortcut of ResNets for ImageNet, by depth.
    """

    sizes: Mapping[tuple[str, int, int], Estimate]
    shortcuts: Mapping[int, Mapping[str, int]]


def _checks(found: Updates) -> list[Check]:
    depths = sorted({depth for _, _, depth in found.sizes})
    low, high = depths[0], depths[-1]
    return [
        *(_level(found, scheme, after, low, high) for scheme, after in _measured(found) if scheme in BOUNDED),
        *(
            larger(
                f"{WITH_DEPTH[scheme]} ‖∆f‖/η grows with depth: it is larger at L = {high} than at L = {low}.",
                found.sizes[scheme, 0, high],
                found.sizes[scheme, 0, low],
            )
            for scheme in WITH_DEPTH
        ),
        check(
            "The shortcut of ResNet-50, 101 and 152 has five convolutions and one fully connected layer.",
            all(one == SHORTCUT for one in found.shortcuts.values()),
            **{f"convolutions_{depth}": one["convolutions"] for depth, one in found.shortcuts.items()},
        ),
    ]


def _measured(found: Updates) -> list[tuple[str, int]]:
    """Schemes and steps before, in their order."""
    return list(dict.fromkeys((scheme, after) for scheme, after, _ in found.sizes))


def _level(found: Updates, scheme: str, steps: int, low: int, high: int) -> Check:
    first, second = found.sizes[scheme, steps, low], found.sizes[scheme, steps, high]
    when = "at once" if steps == 0 else f"after {steps} steps"
    return within(
        f"{BOUNDED[scheme]} ‖∆f‖/η {when} differs by less than a factor of {FACTOR:g} between L = {low} and {high}.",
        difference(second, first),
        -log(FACTOR),
        log(FACTOR),
    )


@artefact("fixup/design-goal", basis="measurement", checks=_checks)
def design_goal(context: Context, *, depths: tuple[int, ...], width: int, draws: int, steps: int) -> Evidence:
    """‖∆f‖/η is the same at every depth with Fixup, at once and after some steps; it grows with the others."""
    with seeded(context.seed):
        drawn = pd.concat([_updates(depth, width, draws, steps) for depth in depths], ignore_index=True)
    with np.errstate(divide="ignore"):
        # What overflowed is a number no more.
        drawn["log_update"] = np.log(drawn["update_per_rate"].astype(float).fillna(np.inf))
    sizes = {
        (str(scheme), int(after), int(depth)): _estimate(rows["log_update"])
        for (scheme, after, depth), rows in _groups(drawn)
    }
    facts = Updates(sizes, {depth: _shortcut(depth) for depth in (50, 101, 152)})
    means = pd.DataFrame(
        {
            "quantity": "‖∆f‖/η", "scheme": scheme, "steps": after, "depth": depth,
            "update_per_rate": float(np.exp(one.mean)), "deviation_of_log": one.deviation, "n": one.n,
        }
        for (scheme, after, depth), one in facts.sizes.items()
    )  # fmt: skip
    words = ", ".join(f"{name} {count}" for name, count in facts.shortcuts[50].items())
    published = pd.DataFrame([{"quantity": "shortcut_layers_imagenet", "value": words}])
    return Evidence(
        measured=pd.concat([published, means], ignore_index=True),
        facts=facts,
        setup={
            "networks": f"dense, two ReLU → linear on every branch, width {width}, L = {', '.join(map(str, depths))}",
            "measured": f"one random example of one class, η = {RATE:g}; logits' change over η, float32",
            "steps before": f"0 and {steps}, at rate {STEP_RATE:g}",
            "draws": f"{draws} of weights and example",
            "mean": "geometric, over draws",
        },
        on=("quantity",),
        draw=lambda: UPDATES(drawn[(drawn["steps"] == 0) & np.isfinite(drawn["log_update"])]),
        remarks=(
            "With rule 1 the classifier is zero and the first step moves nothing but it: whether the goal is met is "
            "seen after some steps, and without rule 1.",
            "ResNet-18 and 34 have four convolutions on the shortcut: their first stage does not change the width.",
        ),
    )


def _groups(drawn: pd.DataFrame) -> Iterable[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The draws of each scheme, number of steps before and number of blocks."""
    groups: Any = drawn.groupby(["scheme", "steps", "depth"], sort=False)
    return list(groups)


def _estimate(logs: pd.Series) -> Estimate:
    """Over draws; infinite where the update of any overflowed."""
    return over_draws(logs) if np.isfinite(logs).all() else Estimate(math.inf)


def _updates(depth: int, width: int, draws: int, steps: int) -> pd.DataFrame:
    """A row per scheme, draw and number of steps before."""
    tables = []
    for draw in range(draws):
        original, inputs = dense(depth, width, in_features=64, branch_layers=2), torch.randn(32, 64)
        for scheme in (*BOUNDED, *WITH_DEPTH):
            after = (0, steps) if scheme in BOUNDED else (0,)
            network = convert(original, scheme, *([inputs] if scheme == "lsuv" else []))
            table = function_update_table(
                network, inputs[:1], torch.tensor([3]),
                rates=(RATE,), steps=after, step_rate=STEP_RATE,
            )  # fmt: skip
            tables.append(table.assign(scheme=scheme, depth=depth, draw=draw))
    return pd.concat(tables, ignore_index=True)


def _shortcut(depth: int) -> dict[str, int]:
    """Weight layers on the shortest path from the images to the logits."""
    with torch.device("meta"):
        found = residual_map(resnet(depth))
    skips = [layer for block in found.blocks for layer in block.skip_layers if layer.kind == "weight"]
    outside = [layer for layer in (*found.stem_layers, *found.head_layers) if layer.kind == "weight"]
    fully = sum(layer.path == found.classifier for layer in outside)
    return {"convolutions": len(skips) + len(outside) - fully, "fully_connected": fully}


UPDATES = Plot(
    "lines",
    x="depth",
    y="update_per_rate",
    summary="median",
    log="xy",
    title="One SGD step at initialization",
    y_label="change of the logits / rate",
)
