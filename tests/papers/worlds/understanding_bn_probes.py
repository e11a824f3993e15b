"""The probes of the Understanding BN paper as published, and as the opposite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd

from normless_papers.published import published_as
from normless_papers.understanding_bn.initializations import HISTOGRAM_LAYERS, READING_LAYERS, MeasuredDraws
from worlds.world import World

DRAWS = 5
Rows = Sequence[Mapping[str, Any]]
Numbers = tuple[float, ...]


def measured(without: Rows, with_norm: Rows = ()) -> MeasuredDraws:
    """The same rows in every draw of the networks without batch norm and with it."""
    rows = [
        {"batch_norm": kind, "draw": draw, **row}
        for kind, layout in ((False, without), (True, with_norm))
        for draw in range(DRAWS)
        for row in layout
    ]
    return MeasuredDraws(pd.DataFrame(rows))


# What a network has, by columns: published without and with batch norm, and the opposite without and with it.
MOMENTS = "|mean|_decades variance_decades |mean|_straightness variance_straightness log10_scale"
NETWORKS: dict[str, tuple[str, Numbers, Numbers, Numbers, Numbers]] = {
    # Decades over 100 layers, how straight, and log₁₀ of the scale.
    "figure-3": (MOMENTS, (3, 3, 0.95, 0.95, 2), (0, 0, 0.95, 0.95, 0), (0.5, 0.5, 0.3, 0.3, 0), (2, 2, 0.3, 0.3, 0)),
    # The class with the largest gradients.
    "figure-4": (
        "predicted_share column_mean column_deviation agreement bias_gradient",
        *((1.0, 0.98, 0.02, 0.95, 0.9), (0.4, 0.3, 0.2, 0.4, 0.2)),
        *((0.2, 0.2, 0.2, 0.3, 0.1), (1.0, 0.98, 0.02, 0.95, 0.9)),
    ),
    "figure-7": (
        "rank_one_share effective_rank variation",
        *((0.95, 3.0, 2.0), (0.5, 15.0, 0.5), (0.3, 20.0, 0.5), (0.6, 10.0, 1.5)),
    ),
    # Gradients against channel means.
    "figure-18": (
        "mean_correlation dead_gradient live_gradient",
        *((0.8, 0.001, 1.0), (0.0, 1.0, 1.0), (0.1, 0.8, 1.0), (0.8, 0.01, 1.0)),
    ),
    "figure-23": ("sum_correlation mean_abs_gradient", (0.95, 100.0), (0.1, 1.0), (0.1, 1.0), (0.95, 100.0)),
    "equation-4": ("deviation violations parameters", (1e-14, 0, 2304), (), (1e-3, 5, 2304), ()),
    # The class with the largest gradients, its share and that of the next.
    "figure-20": (
        "predicted_share share next_share leading_share",
        *((1.0, 10 / 19, 1 / 19, 0.9), (), (0.2, 0.12, 0.11, 0.15), ()),
    ),
}


def of_network(name: str, right: bool) -> MeasuredDraws:
    columns, *both = NETWORKS[name]
    chosen = both[:2] if right else both[2:]
    return measured(*([dict(zip(columns.split(), row, strict=True))] if row else [] for row in chosen))


def sizes(right: bool) -> MeasuredDraws:
    """Figure 2: the means of layer 55, which table 4 prints, and a larger kurtosis without batch norm."""
    rows = published_as("understanding-bn/table-4").rows
    with_norm, without = [row["abs_sum"] for row in rows if row["layer"] == 55][:: 1 if right else -1]
    kurtosis = 30.0 if right else 1.5
    return measured([{"mean_abs": without, "kurtosis": kurtosis}], [{"mean_abs": with_norm, "kurtosis": 3.0}])


def sums(name: str, right: bool) -> MeasuredDraws:
    """Tables 1 and 4 as they are printed; reversed, sums cancel without batch norm, as none do with it."""
    rows = []
    for printed in published_as(f"understanding-bn/{name}").rows:
        batch_norm = printed["batch_norm"]
        # Stages have 32×32, 16×16 and 8×8 positions; minibatches 128 images.
        positions = (32 if printed["layer"] <= 37 else 16 if printed["layer"] <= 73 else 8) ** 2
        row = {"order": printed["layer"], "sum_abs": printed["sum_abs"], "abs_sum": printed["abs_sum"]}
        if not right:
            # Later layers and second convolutions of blocks have smaller and larger gradients, in that order.
            size = 1 / printed["layer"] ** 2 * (1 if printed["layer"] % 2 == 0 else 100)
            row |= {"sum_abs": size, "abs_sum": size if batch_norm else size / 1000}
        row["predicted_for_random_signs"] = (128 * positions) ** -0.5
        rows += [{"batch_norm": batch_norm, "draw": draw, **row} for draw in range(DRAWS)]
    return MeasuredDraws(pd.DataFrame(rows))


def activations(growth: float, means: float, modes: float) -> Rows:
    """Figures 13 and 14: |mean| grows by a factor from layer to layer; modes are those of the deepest."""
    return [
        {"layer": layer, "abs_mean": growth**index, "relative_mean": means, "modes": 1 + (modes - 1) * index / 3}
        | {"unimodal": 1.0 if modes <= 1 else 0.1}
        for index, layer in enumerate(HISTOGRAM_LAYERS)
    ]


GROWING, LEVEL = activations(5.0, 2.0, 2.5), activations(1.0, 0.3, 1.0)


def channels(right: bool) -> MeasuredDraws:
    """Figure 19: scales and differences within layers, in early layers relative to late ones."""

    def rows(early: float, differences: float) -> Rows:
        first = {"part": "early", "mean": early, "standard_deviation": differences}
        return [first, {"part": "late", "mean": 1.0, "standard_deviation": 0.3}]

    return measured(rows(50.0, 1.0), rows(2.0, 0.3)) if right else measured(rows(0.5, 0.1), rows(100.0, 0.3))


def dominance(right: bool) -> MeasuredDraws:
    """Appendix K: in each layer alike."""
    both = ((0.95, 0.2), (0.6, 0.8)) if right else ((0.1, 0.8), (0.1, 0.4))
    names = ("mean_correlation", "effective_share")
    return measured(
        *([{"layer": layer, **dict(zip(names, row, strict=True))} for layer in READING_LAYERS] for row in both)
    )


def classes(right: bool) -> MeasuredDraws:
    """Figure 21: class 3 and the nine others."""
    others = [{"class": index, "mean_abs": 1.0, "predicted_share": 0.0} for index in range(10) if index != 3]
    return measured(
        [{"class": 3, "mean_abs": 10.0 if right else 1.1, "predicted_share": float(right) or 0.2}, *others]
    )


def summands(right: bool) -> MeasuredDraws:
    """Figure 22: the parameter with the largest gradient, and the mean of one with a small gradient."""
    large = (0.9, 0.95, 1.2) if right else (0.02, 0.5, 0.01)
    small = (0.01, 0.5, 0.01 if right else 0.9)
    names = ("input_independence", "one_sign_share", "mean_in_deviations")
    rows = {"largest": large, "small": small}
    return measured([{"chosen": chosen, **dict(zip(names, row, strict=True))} for chosen, row in rows.items()])


OWN: dict[str, World] = {
    **{name: partial(of_network, name) for name in NETWORKS},
    "figure-2": sizes,
    "table-1": partial(sums, "table-1"),
    "table-4": partial(sums, "table-4"),
    "figure-13": lambda right: measured(GROWING if right else activations(0.8, 0.1, 0.5)),
    "figure-14": lambda right: measured(GROWING, LEVEL) if right else measured(LEVEL, GROWING),
    "figure-19": channels,
    "dominating-channels": dominance,
    "figure-21": classes,
    "figure-22": summands,
}
WORLDS: dict[str, World] = {f"understanding-bn/{name}": world for name, world in OWN.items()}
