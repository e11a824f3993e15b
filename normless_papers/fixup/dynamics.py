"""Fixup's multipliers in training: weight norms, angles and multipliers with decay and a drop of the rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes

from normless import param_groups, residual_map
from normless.models import dense
from normless.probes import RideAlong, every
from normless_lab.plots import lines, new_panels
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network, Seeds
from normless_papers.claims import Estimate, Tests, exceeds, over_draws, replicates
from normless_papers.networks.seeded_inputs import convert, seeded
from normless_papers.probes import WeightDynamics

WITH, WITHOUT = "fixup", "fixup(multiplier=False)"


def _checks(facts: tuple[pd.DataFrame, int, int]) -> Tests:
    """Check the weights on branches by draw, scheme, weight and step, given the drop's step and the last step."""
    branch, drop, steps = facts
    scaled, unscaled = (branch[branch["scheme"] == scheme] for scheme in (WITH, WITHOUT))
    cosine = over_draws(scaled["cosine"].abs().groupby(scaled["draw"]).mean())
    norm, multiplier, rate = (
        _change(scaled, name, drop, steps) for name in ("weight_norm", "multiplier", "log_rate")
    )
    earlier = _change(scaled, "multiplier", max(10, 2 * drop - steps), drop)
    without = _change(unscaled, "log_rate", drop, steps)
    effective = "the effective rate of a branch's weights over η, rises (log of it)."
    return {
        "The gradient is almost orthogonal to the weight: the mean of |cosine| is below 0.2.": exceeds(0.2, cosine),
        "After the drop the weights' norm shrinks.": exceeds(0.0, norm),
        "After the drop the multiplier grows.": exceeds(multiplier, 0.0),
        "It grows more after the drop than in as many steps before it.": exceeds(multiplier, earlier),
        f"After the drop α²/‖W‖², {effective}": exceeds(rate, 0.0),
        "It rises more with the multiplier than without.": exceeds(rate, without),
    }


def _change(rows: pd.DataFrame, column: str, start: int, end: int) -> Estimate:
    """Estimate over draws how a column's mean over weights changes from one step to another."""
    by_step = rows.groupby(["draw", "step"])[column].mean().unstack("step")
    return replicates(by_step[end] - by_step[start])


@artefact("fixup/multiplier-dynamics", basis="training", checks=_checks)
def multiplier_dynamics(
    context: Context, *, steps: int, drop: int, draws: Seeds[int], width: Network[int], decay: float
) -> Evidence:
    tables = []
    for draw in range(draws):
        for scheme in (WITH, WITHOUT):
            with seeded(context.seed + draw):
                tables.append(_trained(scheme, steps, drop, width, decay).assign(scheme=scheme, draw=draw))
    table = pd.concat(tables, ignore_index=True)
    branch = table[table["place"] == "branch"]
    marks = [mark for mark in (drop // 2, drop, (steps + drop) // 2, steps) if mark in set(branch["step"])]
    columns = ["weight_norm", "multiplier", "cosine", "relative_rate"]
    rows = branch[branch["step"].isin(marks)].groupby(["scheme", "step"], sort=False)[columns].mean().reset_index()
    return Evidence(
        measured=rows,
        facts=(branch, drop, steps),
        setup={
            "network": f"dense, 3 blocks of width {width}, two ReLU → linear on each branch, by {WITH} and {WITHOUT}",
            "data": "prototypes of 10 classes and N(0, 1) noise in 16 dimensions, half of the labels drawn anew",
            "training": f"{steps} steps of 16 examples at rate 0.1, a tenth of it from step {drop + 1} on, L2 "
            f"{decay:g} on the weights and not on the scalars",
            "draws": draws,
        },
        draw=lambda: _panels(branch),
    )


def _trained(scheme: str, steps: int, drop: int, width: int, decay: float) -> pd.DataFrame:
    """Train, and record weights, gradients and multipliers every tenth step; the rate falls to a tenth at `drop`."""
    prototypes = torch.randn(10, 16)
    network = convert(dense(3, width, in_features=16, branch_layers=2), scheme)
    optimizer = torch.optim.SGD(param_groups(network, lr=0.1, weight_decay=decay, policy="weights"), lr=0.1)
    structure, ride = residual_map(network), RideAlong((WeightDynamics(),), every(10, start=10))
    for step in range(1, steps + 1):
        targets = torch.randint(10, (16,))
        inputs = prototypes[targets] + torch.randn(16, 16)
        noisy = torch.where(torch.rand(16) < 0.5, torch.randint(10, (16,)), targets)
        optimizer.zero_grad()
        with ride.during(step, network, structure):
            torch.autograd.backward(F.cross_entropy(network(inputs), noisy))
        if step == drop + 1:
            for group in optimizer.param_groups:
                group["lr"] /= 10
        optimizer.step()
    table = ride.tables()["WeightDynamics"]
    rate = table["multiplier"].fillna(1.0) ** 2 / table["weight_norm"] ** 2
    return table.assign(relative_rate=rate, log_rate=np.log(rate))


def _panels(branch: pd.DataFrame) -> Axes:
    first, second = new_panels(1, 2, width=4.9, height=3.2)
    across: dict[str, Any] = {"x": "step", "by": "scheme", "x_ticks": "integers", "x_label": "step"}
    lines(branch, first, y="weight_norm", title="Weights of the branches", y_label="mean norm of a weight", **across)
    table = branch[branch["scheme"] == WITH]
    lines(table, second, y="multiplier", title="Multipliers of the branches", y_label="mean |multiplier|", **across)
    return first
