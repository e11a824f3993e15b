"""The plots of the papers have the lines of their tables; those without lines are drawn with their artefacts."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn import lines_of

from normless_lab.plots import PLOTS, inks_of, optimum_against
from normless_papers.probes import GradientSums
from normless_papers.understanding_bn.equations import NOISE
from normless_papers.understanding_bn.matrix_products import CONDITION

NOISES = pd.DataFrame(
    {"batch_size": [1, 4] * 2, "learning_rate": [0.1, 0.1, 0.2, 0.2], "noise": [4.0, 1.0, 9.0, 2.0]}
)
NOISES["predicted_noise"] = NOISES["learning_rate"] ** 2 / NOISES["batch_size"]
CONDITIONING = pd.DataFrame({"factors": range(1, 6)})
for quantity, factor in (("mean", 3.0), ("std", 0.5), ("predicted", 2.9)):
    CONDITIONING[f"{quantity}_log10_condition"] = factor * CONDITIONING["factors"]
SUMS = pd.DataFrame(
    {"scheme": scheme, "order": order, "sum_abs": 1e-3, "abs_sum": ratio * 1e-3, "input_independence": ratio}
    | {"sum_b_abs_sum_xy": 5e-4, "sum_xy_abs_sum_b": 7e-4, "predicted_for_random_signs": 0.005 * order}
    for scheme, ratio in (("xavier", 0.4), ("batch_norm", 0.01))
    for order in (1, 2, 3)
)
OPTIMA = pd.DataFrame(
    {
        "method": ["batch_norm", "batch_norm", "bare", "bare"],
        "batch_size": [256, 16, 16, 256],
        "mean": [94.0, 93.0, 90.0, 10.0],
        "deviation": [0.5, math.nan, 0.1, 0.0],
        "trainable": [True, True, True, False],
    }
)
INKS = inks_of({"batch_norm": "batch_norm", "bare": "none", "again": "none"})
OPTIMUM = partial(optimum_against, title="T", y_label="%", series="method", across="batch_size", inks=INKS)

# A line of a figure: its table, its label, and the columns that it has for x and y, with a query for its rows.
FIGURES: dict[str, tuple[Any, pd.DataFrame, str, str]] = {
    "noise": (NOISE, NOISES, "α = 0.2, measured", "batch_size noise learning_rate==0.2"),
    "predicted noise": (NOISE, NOISES, "α = 0.1, predicted", "batch_size predicted_noise learning_rate==0.1"),
    "condition": (CONDITION, CONDITIONING, "measured", "factors mean_log10_condition factors>0"),
    "sums": (GradientSums.plot, SUMS, "batch_norm", "order input_independence scheme=='batch_norm'"),
    "random signs": (GradientSums.plot, SUMS, "random signs", "order predicted_for_random_signs scheme=='xavier'"),
    "optima": (OPTIMUM, OPTIMA, "batch_norm", "batch_size mean method=='batch_norm'"),
    "not trained": (OPTIMUM, OPTIMA, "bare, not trained", "batch_size mean mean==10"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_has_the_lines_of_its_table_and_says_what_it_lacks(name: str) -> None:
    draw, table, label, line = FIGURES[name]
    x, y, query = line.split(" ", 2)
    rows = table.query(query).sort_values(x)
    found = lines_of(draw(table))[label]
    np.testing.assert_allclose(found, [rows[x], rows[y]])
    with pytest.raises(ValueError, match="lacks"):
        draw(pd.DataFrame({"nothing": [1]}))


@pytest.mark.parametrize("probe", ["signal", "covariance"])
def test_measured_points_and_predicted_lines_are_the_table(probe: str) -> None:
    names = PLOTS[probe].arguments["measured"]
    table = pd.DataFrame({"block": range(1, 9), "name": "blocks", "equation": 11})
    for offset, column in enumerate(names, 1):
        table[column] = 0.01 * offset * table["block"]
        table[f"predicted_{column}"] = 1.01 * table[column]
    drawn = lines_of(PLOTS[probe](table.sample(frac=1, random_state=0)))
    for column, name in names.items():
        assert drawn[f"{name}, measured"] == (list(table["block"]), list(table[column]))
        np.testing.assert_array_equal(drawn[f"{name}, predicted"][1], table[f"predicted_{column}"])
