"""Fixup's design goal: a gradient descent step changes the function by Θ(η) at any depth (section 3)."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import numpy as np
import pandas as pd
import torch

from normless import residual_map
from normless.models import dense, resnet
from normless_lab.plots import Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network, Seeds
from normless_papers.claims import (
    UNKNOWN,
    Estimate,
    Test,
    Tests,
    decided,
    difference,
    exceeds,
    lies_within,
    over_draws,
)
from normless_papers.evidence import with_quantities
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.probes.updates import function_update_table

WITH_DEPTH = {"none": "With standard initialization", "sqrt2": "With sums times √½", "lsuv": "With LSUV"}
BOUNDED = {"fixup": "With Fixup", "fixup(zero=False)": "With Fixup without rule 1"}
STEP_RATE = 0.01
# Weight layers on the shortcut of a ResNet for ImageNet, as the paper counts them.
SHORTCUT = {"convolutions": 5, "fully_connected": 1}
# ‖∆f‖/η of two depths has the same order if the ratio is below this.
FACTOR = 1.5


def _checks(facts: tuple[Mapping[tuple[str, int, int], Estimate], Mapping[int, Mapping[str, int]]]) -> Tests:
    """Check log ‖∆f‖/η by scheme, preceding steps and number of blocks, and the shortcut's layers by depth."""
    sizes, shortcuts = facts
    depths = sorted({depth for _, _, depth in sizes})
    low, high = depths[0], depths[-1]
    level = f"differs by less than a factor of {FACTOR:g} between L = {low} and {high}."
    grows = f"‖∆f‖/η grows with depth: it is larger at L = {high} than at L = {low}."
    tests: dict[str, Test] = {}
    for scheme, steps, depth in sizes:
        if scheme in BOUNDED and depth == high:
            claim = f"{BOUNDED[scheme]} ‖∆f‖/η {f'after {steps} steps' if steps else 'at once'} {level}"
            change = difference(sizes[scheme, steps, high], sizes[scheme, steps, low])
            tests[claim] = lies_within(change, -log(FACTOR), log(FACTOR))
    for scheme, words in WITH_DEPTH.items():
        tests[f"{words} {grows}"] = exceeds(sizes[scheme, 0, high], sizes[scheme, 0, low])
    same = all(counts == SHORTCUT for counts in shortcuts.values())
    convolutions = {f"convolutions_{depth}": counts["convolutions"] for depth, counts in shortcuts.items()}
    shortcut = "The shortcut of ResNet-50, 101 and 152 has five convolutions and one fully connected layer."
    return {**tests, shortcut: decided(same, **convolutions)}


@artefact("fixup/design-goal", basis="measurement", checks=_checks)
def design_goal(
    context: Context, *, depths: Network[tuple[int, ...]], width: Network[int], draws: Seeds[int], steps: int
) -> Evidence:
    with seeded(context.seed):
        drawn = pd.concat([_updates(depth, width, draws, steps) for depth in depths], ignore_index=True)
    drawn["log_update"] = np.log(drawn["update_per_rate"].astype(float))
    groups: Any = drawn.groupby(["scheme", "steps", "depth"], sort=False)["log_update"]
    sizes = {(str(scheme), int(after), int(depth)): _estimate(logs) for (scheme, after, depth), logs in groups}
    shortcuts = {depth: _shortcut(depth) for depth in (50, 101, 152)}
    means = pd.DataFrame(
        {
            "quantity": "‖∆f‖/η", "scheme": scheme, "steps": after, "depth": depth,
            "update_per_rate": float(np.exp(size.mean)), "deviation_of_log": size.deviation, "n": size.n,
        }
        for (scheme, after, depth), size in sizes.items()
    )  # fmt: skip
    counts = ", ".join(f"{name} {count}" for name, count in shortcuts[50].items())
    return Evidence(
        measured=with_quantities({"shortcut_layers_imagenet": counts}, means),
        facts=(sizes, shortcuts),
        setup={
            "networks": f"dense, two ReLU → linear on every branch, width {width}, L = {', '.join(map(str, depths))}",
            "measured": "one random example, of the class that the network finds least likely; logits' change over η "
            "for η → 0, float64",
            "steps before": f"0 and {steps}, at rate {STEP_RATE:g}",
            "draws": f"{draws} of weights and example",
            "mean": "geometric, over draws",
        },
        draw=lambda: UPDATES(drawn[drawn["steps"] == 0]),
    )


def _estimate(logs: pd.Series) -> Estimate:
    """Estimate over draws; unknown if the update of any draw overflowed."""
    return over_draws(logs) if np.isfinite(logs).all() else UNKNOWN


def _updates(depth: int, width: int, draws: int, steps: int) -> pd.DataFrame:
    """Measure an update for each scheme, draw and number of preceding steps."""
    tables = []
    for draw in range(draws):
        # The update of a network of standard initialization overflows float32 from some 60 blocks on.
        original, inputs = dense(depth, width, in_features=64, branch_layers=2).double(), torch.randn(32, 64).double()
        for scheme in (*BOUNDED, *WITH_DEPTH):
            network = convert(original, scheme, *([inputs] if scheme == "lsuv" else []))
            after = (0, steps) if scheme in BOUNDED else (0,)
            x, rates = inputs[:1], (STEP_RATE,)
            # The gradient of the loss vanishes where a network is certain of the right class.
            target = network(x).argmin(1)
            table = function_update_table(network, x, target, rates=rates, steps=after, step_rate=STEP_RATE)
            # The limit for η → 0, since a step of any size may leave the range in which the function is linear.
            limit = table[["steps", "predicted_update_per_rate"]].set_axis(["steps", "update_per_rate"], axis=1)
            tables.append(limit.assign(scheme=scheme, depth=depth, draw=draw))
    return pd.concat(tables, ignore_index=True)


def _shortcut(depth: int) -> dict[str, int]:
    """Count the weight layers on the shortest path from the images to the logits."""
    with torch.device("meta"):
        network = residual_map(resnet(depth))
    skips = [layer for block in network.blocks for layer in block.skip_layers]
    layers = [layer for layer in (*network.stem_layers, *skips, *network.head_layers) if layer.kind == "weight"]
    fully_connected = sum(layer.path == network.classifier for layer in layers)
    return {"convolutions": len(layers) - fully_connected, "fully_connected": fully_connected}


UPDATES = Plot(
    "lines",
    x="depth",
    y="update_per_rate",
    summary="median",
    log="xy",
    title="One SGD step at initialization",
    y_label="change of the logits / rate",
)
