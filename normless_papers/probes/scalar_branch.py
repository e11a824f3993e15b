"""A residual branch of scalars: initializations for which L branches together change by Θ(η) in one step.

The branch F(x) = (∏ a_i) x has m scalar layers. One step of gradient descent, with ∂ℓ/∂F = Θ(1) and x = Θ(1), changes
it to first order by

    ΔF = -η ∂ℓ/∂F · Σ_i (F/a_i)²,    F/a_i = (∏_{k≠i} a_k) x also for a_i = 0

which is Θ(η/L), as L aligned branches require, if and only if (∏_{k≠j} a_k) x = Θ(1/√L) for the smallest a_j (Fixup,
Zhang et al. 2019, appendix B.2, theorem 4, equations 15 to 21; equation 5). Both a_i = L^(-1/(2m-2)) for all i,
and the same with a_m = 0, Fixup's choice, satisfy it; a_i = 1 does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Literal, TypeAlias, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor

Option: TypeAlias = Literal["equal", "zero_last", "ones"]
"""All a_i = L^(-1/(2m-2)); the same with a_m = 0 (as in Fixup's experiments); all a_i = 1."""


def scalar_branch(option: Option, blocks: int, layers: int) -> Tensor:
    """Return the scalars a_1, …, a_m of one of L branches at initialization."""
    if option not in get_args(Option):
        raise ValueError(f"option is {', '.join(map(repr, get_args(Option)))}, got {option!r}.")
    if blocks < 1 or layers < 2:
        raise ValueError(f"Expected at least one block and two layers in a branch, got {blocks} and {layers}.")
    scalars = torch.ones(layers, dtype=torch.float64)
    if option != "ones":
        scalars *= blocks ** (-1 / (2 * layers - 2))
    if option == "zero_last":
        scalars[-1] = 0.0
    return scalars


def exact_update(scalars: Tensor, learning_rate: float, *, signal: float = 1.0, slope: float = 1.0) -> float:
    """Compute the exact change of F by one step of gradient descent."""
    before = scalars.detach().double().requires_grad_()
    output = before.prod() * signal
    (gradient,) = torch.autograd.grad(output, before, torch.tensor(slope, dtype=torch.float64))
    after = (before - learning_rate * gradient).detach().prod() * signal
    return float(after - output.detach())


def first_order_update(scalars: Tensor, learning_rate: float, *, signal: float = 1.0, slope: float = 1.0) -> float:
    """Compute the change of F to first order (equations 17 and 18); arguments as for `exact_update`."""
    values = scalars.tolist()
    others = [np.prod(values[:i] + values[i + 1 :]) * signal for i in range(len(values))]
    return float(-learning_rate * slope * sum(other**2 for other in others))


def scalar_branch_table(
    blocks: Sequence[int] = (4, 16, 64, 256, 1024, 4096),
    layers: Sequence[int] = (2, 3, 4),
    *,
    learning_rate: float = 1e-3,
) -> pd.DataFrame:
    """Tabulate the change of a scalar branch in one step, exact and to first order, at x = ∂ℓ/∂F = 1.

    One row per option, number of layers m in a branch and number of branches L (``blocks``): ``output`` (F before the
    step), ``update`` (ΔF, exact), ``predicted_update``. ValueError for no block or fewer than two layers.
    """
    rows = []
    for option, depth, count in product(get_args(Option), layers, blocks):
        scalars = scalar_branch(option, count, depth)
        row = {"option": option, "layers": depth, "blocks": count, "learning_rate": learning_rate}
        row |= {"output": float(scalars.prod()), "update": exact_update(scalars, learning_rate)}
        rows.append(row | {"predicted_update": first_order_update(scalars, learning_rate)})
    return pd.DataFrame(rows)


def update_slopes(table: pd.DataFrame) -> pd.DataFrame:
    """Fit the slope of log|ΔF| against log L by least squares: -1 if branches together change by Θ(η).

    From rows of `scalar_branch_table`, one row per option and m: ``option``, ``layers``, ``slope`` of the exact
    updates and ``predicted_slope``, -1, or 0 for ones. ValueError for fewer than two L.
    """
    rows = []
    for (option, layers), curve in table.groupby(["option", "layers"], sort=False):
        if curve["blocks"].nunique() < 2:
            raise ValueError(f"Expected at least two numbers of blocks, got one for {option} with {layers} layers.")
        across, up = np.log(curve["blocks"].to_numpy(float)), np.log(curve["update"].abs().to_numpy(float))
        slope = float(np.polynomial.Polynomial.fit(across, up, 1).convert().coef[1])
        rows.append((option, layers, slope, 0.0 if option == "ones" else -1.0))
    return pd.DataFrame(rows, columns=["option", "layers", "slope", "predicted_slope"])
