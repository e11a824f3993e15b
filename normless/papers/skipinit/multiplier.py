"""SkipInit itself: a scalar at the end of every branch, what it starts at, what it multiplies, and what for."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from normless import convert, residual_map
from normless.models import wide_resnet
from normless.papers.agreement import Agreement, agreement, agreement_table
from normless.papers.artefact import Context, artefact
from normless.papers.draws import seeded
from normless.papers.evidence import Evidence
from normless.papers.multipliers import blocks_at_start, placement
from normless.papers.outcomes import all_trained, none_trained, outcome_table
from normless.papers.verdict import Check, check
from normless.report.accuracy import accuracy_against_depth
from normless.training import TrainConfig

STARTS = {"0": "skipinit", "1/sqrt(L)": "skipinit(alpha=1/sqrt(L))", "1": "skipinit(alpha=1)"}


@artefact(
    "skipinit/skipinit",
    smoke={"depth": 16, "width": 1, "shallow": 100, "deep": 100, "rates": (0.05,), "data": "digits", "epochs": 1,
           "batch_size": 32},
    small={"depth": 100, "width": 1, "shallow": 100, "deep": 1000, "rates": (0.001, 0.05), "data": "digits",
           "epochs": 1, "batch_size": 32},
    paper={"depth": 100, "width": 2, "shallow": 100, "deep": 1000, "rates": tuple(2.0**n for n in range(-6, 1)),
           "data": "cifar10", "epochs": 200, "batch_size": 64},
)  # fmt: skip
def skipinit(
    context: Context,
    *,
    depth: int,
    width: int,
    shallow: int,
    deep: int,
    rates: tuple[float, ...],
    data: str,
    epochs: int,
    batch_size: int,
) -> Evidence:
    """x_{l+1} = skip + α branch, α = 0, 1/√L or 1; with small α 1000 layers train, with α = 1 a hundred do not."""
    with seeded(context.seed):
        original, images = wide_resnet(depth, width), torch.randn(4, 3, 16, 16)
        agreements = [
            *_starts(original),
            *blocks_at_start(convert(original, "skipinit"), images),
            _standard_weights(original),
            *placement(convert(original, "zeroinit(dropout=0)"), images),
        ]
    name = context.data_or(data)
    base = TrainConfig(
        data=name, data_root=context.data_root, batch_size=batch_size, epochs=epochs, seed=context.seed
    )
    runs = outcome_table(context, _runs(base, width, shallow, deep, rates))
    table = pd.concat([agreement_table(agreements), runs], ignore_index=True)
    return Evidence(
        measured=table,
        checks=(_no_norms(original), *(one.check() for one in agreements), *_trainable(runs, shallow, deep)),
        setup={
            "network": f"Wide-ResNet-{depth}-{width} for the algorithm",
            "trained": f"Wide-ResNets of width {width}, {name}, {epochs} epochs, batch size {batch_size}, rates "
            f"{', '.join(f'{rate:g}' for rate in rates)}, momentum 0.9, L2 5e-4",
            "d in 1/sqrt(d)": "the number of residual blocks L",
            "seed": context.seed,
        },
        draw=lambda: accuracy_against_depth(_best(runs).rename(columns={"alpha": "scheme"}), chance=_chance(runs)),
    )


def _starts(original: nn.Module) -> list[Agreement]:
    """One multiplier per block, and where each starts."""
    blocks = len(residual_map(original).blocks)
    values = {"0": 0.0, "1/sqrt(L)": 1 / sqrt(blocks), "1": 1.0}
    found = []
    for label, scheme in STARTS.items():
        network = convert(original, scheme)
        held: list[Tensor] = [one for name, one in network.named_parameters() if name.endswith("multiplier")]
        expected = torch.full((blocks, 1), values[label])
        # A wrong number of multipliers is no agreement.
        stacked = torch.stack(held) if len(held) == blocks else expected + float("nan")
        found.append(
            agreement(f"α = {label} is the start of one scalar in each of {blocks} blocks", stacked, expected)
        )
    return found


def _no_norms(original: nn.Module) -> Check:
    before, after = (
        sum(isinstance(one, nn.BatchNorm2d) for one in network.modules())
        for network in (original, convert(original, "skipinit"))
    )
    return check("No batch normalization is left.", after == 0 < before, before=before, after=after)


def _standard_weights(original: nn.Module) -> Agreement:
    """No weight is rescaled."""
    network = dict(convert(original, "skipinit(keep_scale=False)").named_parameters())
    pairs = [(network[name], one) for name, one in original.named_parameters() if one.dim() > 1]
    ours, theirs = (torch.cat([pair[side].flatten() for pair in pairs]) for side in (0, 1))
    return agreement("Weights are those of the standard initialization", ours, theirs)


def _runs(
    base: TrainConfig, width: int, shallow: int, deep: int, rates: tuple[float, ...]
) -> list[tuple[dict[str, Any], TrainConfig]]:
    wanted = [("1", shallow), ("0", deep), ("1/sqrt(L)", deep)]
    return [
        (
            {"alpha": alpha, "depth": depth},
            replace(
                base, model=f"normless:wide_resnet(depth={depth}, width={width})", scheme=STARTS[alpha], rate=rate
            ),
        )
        for alpha, depth in wanted
        for rate in rates
    ]


def _best(runs: pd.DataFrame) -> pd.DataFrame:
    """Of each α and depth the run of the rate with the highest accuracy."""
    ordered = runs.sort_values("test_accuracy", ascending=False, na_position="last")
    best = ordered.drop_duplicates(["alpha", "depth"]).copy()
    best["alpha"] = best["alpha"].map(STARTS)
    return best


def _chance(runs: pd.DataFrame) -> float | None:
    known = runs["chance_accuracy"].dropna()
    return float(known.iloc[0]) if len(known) else None


def _trainable(runs: pd.DataFrame, shallow: int, deep: int) -> list[Check]:
    """A network trains if it does at one of the rates; it does not if it does at none."""
    best = _best(runs)
    of = {alpha: best[best["alpha"] == scheme] for alpha, scheme in STARTS.items()}
    tested = runs.loc[runs["alpha"] == "1"]
    checks = [
        all_trained(f"With α = {alpha}, {deep} layers train at one of the rates at least.", of[alpha])
        for alpha in ("0", "1/sqrt(L)")
    ]
    checks.append(none_trained(f"With α = 1, {shallow} layers train at none of the rates.", tested))
    if deep < 1000:
        checks.append(
            check("With α ≤ 1/√L, 1000 layers train: this budget has fewer.", None, layers_trained=float(deep))
        )
    return checks
