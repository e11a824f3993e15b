"""The probes of the Understanding BN paper as published, and as the opposite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from worlds.world import World, given

from normless_papers.published import published_as
from normless_papers.understanding_bn.initializations import HISTOGRAM_LAYERS, READING_LAYERS, Measured

DRAWS = 5
Rows = Sequence[Mapping[str, Any]]


def drawn(without: Rows, with_norm: Rows = ()) -> pd.DataFrame:
    """The same rows in every draw of the networks without batch norm and with it."""
    rows = [
        {"batch_norm": kind, "draw": draw, **row}
        for kind, layout in ((False, without), (True, with_norm))
        for draw in range(DRAWS)
        for row in layout
    ]
    return pd.DataFrame(rows)


def measured(without: Rows, with_norm: Rows = ()) -> Measured:
    return Measured(drawn(without, with_norm))


def sizes(kurtosis: float, *, reverse: bool = False) -> Measured:
    """Figure 2: the means of layer 55, which table 4 prints, and a kurtosis by so much larger without batch norm."""
    rows = published_as("understanding-bn/table-4").rows
    with_norm, without = (row["abs_sum"] for row in rows if row["layer"] == 55)
    if reverse:
        with_norm, without = without, with_norm
    return measured([{"mean_abs": without, "kurtosis": 3 * kurtosis}], [{"mean_abs": with_norm, "kurtosis": 3.0}])


def moments(without: float, with_norm: float, straightness: float, scale: float) -> Measured:
    """Figure 3: decades over 100 layers, how straight, and log₁₀ of the scale."""

    def row(decades: float) -> dict[str, float]:
        moments = {f"{name}_decades": decades for name in ("|mean|", "variance")}
        return moments | {f"{name}_straightness": straightness for name in ("|mean|", "variance")}

    return measured([row(without) | {"log10_scale": scale}], [row(with_norm) | {"log10_scale": 0.0}])


def favourite(share: float, mean: float, deviation: float, agreement: float, bias: float) -> dict[str, float]:
    """Figure 4: the class with the largest gradients."""
    names = ("predicted_share", "column_mean", "column_deviation", "agreement", "bias_gradient")
    return dict(zip(names, (share, mean, deviation, agreement, bias), strict=True))


def sums(name: str, *, reverse: bool = False) -> Measured:
    """Tables 1 and 4 as they are printed; reversed, sums cancel without batch norm, as none do with it."""
    rows = []
    for printed in published_as(f"understanding-bn/{name}").rows:
        batch_norm = printed["batch_norm"]
        # Stages have 32×32, 16×16 and 8×8 positions; minibatches 128 images.
        positions = (32 if printed["layer"] <= 37 else 16 if printed["layer"] <= 73 else 8) ** 2
        row = {"order": printed["layer"], "sum_abs": printed["sum_abs"], "abs_sum": printed["abs_sum"]}
        if reverse:
            # Later layers and second convolutions of blocks have smaller and larger gradients, in that order.
            size = 1 / printed["layer"] ** 2 * (1 if printed["layer"] % 2 == 0 else 100)
            row |= {"sum_abs": size, "abs_sum": size if batch_norm else size / 1000}
        row["predicted_for_random_signs"] = (128 * positions) ** -0.5
        rows += [{"batch_norm": batch_norm, "draw": draw, **row} for draw in range(DRAWS)]
    return Measured(pd.DataFrame(rows))


def identity(deviation: float, violations: int) -> Measured:
    """Equation (4)."""
    return measured([{"deviation": deviation, "violations": violations, "parameters": 2304}])


def pairs(share: float, rank: float, variation: float) -> dict[str, float]:
    """Figure 7: the matrix of one network."""
    return {"rank_one_share": share, "effective_rank": rank, "variation": variation}


def activations(growth: float, means: float, modes: float) -> Rows:
    """Figures 13 and 14: |mean| grows by a factor from layer to layer; modes are those of the deepest."""
    return [
        {
            "layer": layer,
            "abs_mean": growth**index,
            "relative_mean": means,
            "modes": 1 + (modes - 1) * index / 3,
            "unimodal": 1.0 if modes <= 1 else 0.1,
        }
        for index, layer in enumerate(HISTOGRAM_LAYERS)
    ]


def followed(correlation: float, dead: float) -> dict[str, float]:
    """Figure 18: gradients against channel means."""
    return {"mean_correlation": correlation, "dead_gradient": dead, "live_gradient": 1.0}


def channels(early: float, differences: float) -> Rows:
    """Figure 19: scales and differences within layers, in early layers relative to late ones."""
    return [
        {"part": "early", "mean": early, "standard_deviation": differences},
        {"part": "late", "mean": 1.0, "standard_deviation": 0.3},
    ]


def dominance(correlation: float, share: float) -> Rows:
    """Appendix K: in each layer alike."""
    return [{"layer": layer, "mean_correlation": correlation, "effective_share": share} for layer in READING_LAYERS]


def class_elements(guessed: float, share: float, following: float, leading: float) -> Measured:
    """Figure 20: the class with the largest gradients."""
    row = {"predicted_share": guessed, "share": share, "next_share": following, "leading_share": leading}
    return measured([row])


def classes(guessed: float, ratio: float) -> Measured:
    """Figure 21: class 3 and the nine others."""
    others = [{"class": index, "mean_abs": 1.0, "predicted_share": 0.0} for index in range(10) if index != 3]
    return measured([{"class": 3, "mean_abs": ratio, "predicted_share": guessed}, *others])


def summands(large: Mapping[str, float], small: float) -> Measured:
    """Figure 22: the parameter with the largest gradient, and the mean of one with a small gradient."""
    other = {"input_independence": 0.01, "one_sign_share": 0.5, "mean_in_deviations": small}
    return measured([{"chosen": "largest", **large}, {"chosen": "small", **other}])


def line(correlation: float, gradient: float) -> dict[str, float]:
    """Figure 23: the parameters of one network."""
    return {"sum_correlation": correlation, "mean_abs_gradient": gradient}


WORLDS: dict[str, World] = {
    "understanding-bn/figure-2": given(sizes(10.0), sizes(0.5, reverse=True)),
    "understanding-bn/figure-3": given(moments(3.0, 0.0, 0.95, 2.0), moments(0.5, 2.0, 0.3, 0.0)),
    "understanding-bn/figure-4": given(
        measured([favourite(1.0, 0.98, 0.02, 0.95, 0.9)], [favourite(0.4, 0.3, 0.2, 0.4, 0.2)]),
        measured([favourite(0.2, 0.2, 0.2, 0.3, 0.1)], [favourite(1.0, 0.98, 0.02, 0.95, 0.9)]),
    ),
    "understanding-bn/equation-4": given(identity(1e-14, 0), identity(1e-3, 5)),
    "understanding-bn/table-1": given(sums("table-1"), sums("table-1", reverse=True)),
    "understanding-bn/table-4": given(sums("table-4"), sums("table-4", reverse=True)),
    "understanding-bn/figure-7": given(
        measured([pairs(0.95, 3.0, 2.0)], [pairs(0.5, 15.0, 0.5)]),
        measured([pairs(0.3, 20.0, 0.5)], [pairs(0.6, 10.0, 1.5)]),
    ),
    "understanding-bn/figure-13": given(measured(activations(5.0, 2.0, 2.5)), measured(activations(0.8, 0.1, 0.5))),
    "understanding-bn/figure-14": given(
        measured(activations(5.0, 2.0, 2.5), activations(1.0, 0.3, 1.0)),
        measured(activations(1.0, 0.3, 1.0), activations(5.0, 2.0, 2.5)),
    ),
    "understanding-bn/figure-18": given(
        measured([followed(0.8, 0.001)], [followed(0.0, 1.0)]), measured([followed(0.1, 0.8)], [followed(0.8, 0.01)])
    ),
    "understanding-bn/figure-19": given(
        measured(channels(50.0, 1.0), channels(2.0, 0.3)), measured(channels(0.5, 0.1), channels(100.0, 0.3))
    ),
    "understanding-bn/dominating-channels": given(
        measured(dominance(0.95, 0.2), dominance(0.6, 0.8)), measured(dominance(0.1, 0.8), dominance(0.1, 0.4))
    ),
    "understanding-bn/figure-20": given(
        class_elements(1.0, 10 / 19, 1 / 19, 0.9), class_elements(0.2, 0.12, 0.11, 0.15)
    ),
    "understanding-bn/figure-21": given(classes(1.0, 10.0), classes(0.2, 1.1)),
    "understanding-bn/figure-22": given(
        summands({"input_independence": 0.9, "one_sign_share": 0.95, "mean_in_deviations": 1.2}, 0.01),
        summands({"input_independence": 0.02, "one_sign_share": 0.5, "mean_in_deviations": 0.01}, 0.9),
    ),
    "understanding-bn/figure-23": given(
        measured([line(0.95, 100.0)], [line(0.1, 1.0)]), measured([line(0.1, 1.0)], [line(0.95, 100.0)])
    ),
}
