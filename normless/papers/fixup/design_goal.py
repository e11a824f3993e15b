"""The design goal: a step of gradient descent moves the function by Θ(η), whatever the depth."""

from __future__ import annotations

from math import log

import numpy as np
import pandas as pd
import torch

from normless import convert, residual_map
from normless.models import dense, resnet
from normless.papers.artefact import Context, artefact
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.verdict import Check, Estimate, check, larger
from normless.probes import function_update_table
from normless.report.probes.against_depth import function_update_against_depth

WITH_DEPTH = {
    "none": "With standard initialization",
    "sqrt2": "With sums times √½",
    "lsuv": "With LSUV",
}
BOUNDED = {"fixup": "With Fixup", "fixup(zero=False)": "With Fixup without rule 1"}
RATE, STEP_RATE = 1e-5, 0.01
# Of networks on ImageNet in the paper.
SHORTCUT = {"convolutions": 5, "fully_connected": 1}


@artefact("fixup/design-goal", basis="measurement")
def design_goal(context: Context, *, depths: tuple[int, ...], width: int, draws: int, steps: int) -> Evidence:
    """‖∆f‖/η is the same at every depth with Fixup, at once and after some steps; it grows with the others."""
    with seeded(context.seed):
        drawn = pd.concat([_updates(depth, width, draws, steps) for depth in depths], ignore_index=True)
    drawn["log_update"] = drawn["update_per_rate"].map(lambda size: log(size) if 0 < size < float("inf") else np.nan)
    grouped = drawn.groupby(["scheme", "steps", "depth"], sort=False)["log_update"]
    means = np.exp(grouped.mean()).rename("update_per_rate").reset_index()
    means = means.assign(deviation_of_log=grouped.std(ddof=1).to_numpy(float), n=grouped.count().to_numpy())
    shortcuts = {depth: _shortcut(depth) for depth in (50, 101, 152)}
    words = ", ".join(f"{name} {count}" for name, count in shortcuts[50].items())
    published = pd.DataFrame([{"quantity": "shortcut_layers_imagenet", "value": words}])
    low, high = min(depths), max(depths)
    return Evidence(
        measured=pd.concat([published, means.assign(quantity="‖∆f‖/η")], ignore_index=True),
        checks=(
            *(_level(scheme, after, drawn) for scheme in BOUNDED for after in (0, steps)),
            *(_grows(scheme, drawn, low, high) for scheme in WITH_DEPTH),
            check(
                "The shortcut of ResNet-50, 101 and 152 has five convolutions and one fully connected layer.",
                all(one == SHORTCUT for one in shortcuts.values()),
                **{f"convolutions_{depth}": one["convolutions"] for depth, one in shortcuts.items()},
            ),
        ),
        setup={
            "networks": f"dense, two ReLU → linear on every branch, width {width}, L = {', '.join(map(str, depths))}",
            "measured": f"one random example of one class, η = {RATE:g}; logits' change over η, float32",
            "steps before": f"0 and {steps}, at rate {STEP_RATE:g}",
            "draws": f"{draws} of weights and example",
            "seed": context.seed,
            "mean": "geometric, over draws",
        },
        on=("quantity",),
        draw=lambda: function_update_against_depth(drawn[drawn["steps"] == 0]),
        remarks=(
            "With rule 1 the classifier is zero and the first step moves nothing but it: after some steps, and "
            "without rule 1, the goal is met as well or it is not. Steps of networks that left "
            "float32 are left out.",
            "ResNet-18 and 34 have four convolutions on the shortcut: their first stage does not change the width.",
        ),
    )


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


def _level(scheme: str, steps: int, drawn: pd.DataFrame) -> Check:
    rows = drawn[(drawn["scheme"] == scheme) & (drawn["steps"] == steps)]
    sizes = np.exp(rows.groupby("depth")["log_update"].mean())
    when = "at once" if steps == 0 else f"after {steps} steps"
    return check(
        f"{BOUNDED[scheme]} ‖∆f‖/η {when} differs by less than a factor of 1.5 between depths.",
        bool(sizes.max() < 1.5 * sizes.min()),
        **{f"L_{depth}": size for depth, size in sizes.items()},
    )


def _grows(scheme: str, drawn: pd.DataFrame, low: int, high: int) -> Check:
    """By the logarithms of all draws; where it overflowed at the larger depth, it grew."""
    rows = drawn[drawn["scheme"] == scheme]

    def estimate(depth: int) -> Estimate:
        found = rows[rows["depth"] == depth]["log_update"].dropna()
        return Estimate(float(found.mean()), float(found.std(ddof=1)), max(len(found), 1))

    lost = rows[rows["depth"] == high]["log_update"].isna().sum()
    claim = f"{WITH_DEPTH[scheme]} log ‖∆f‖/η is larger at L = {high} than at L = {low}."
    if lost and rows[rows["depth"] == low]["log_update"].notna().all():
        return check(claim, True, overflowed_draws=float(lost))
    return larger(claim, estimate(high), estimate(low))


def _shortcut(depth: int) -> dict[str, int]:
    """Weight layers on the shortest path from the images to the logits."""
    with torch.device("meta"):
        found = residual_map(resnet(depth))
    skips = [layer for block in found.blocks for layer in block.skip_layers if layer.kind == "weight"]
    outside = [layer for layer in (*found.stem_layers, *found.head_layers) if layer.kind == "weight"]
    fully = sum(layer.path == found.classifier for layer in outside)
    return {"convolutions": len(skips) + len(outside) - fully, "fully_connected": fully}
