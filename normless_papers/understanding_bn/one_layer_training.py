"""Training one layer of a linear network against the condition number of the others (proposition 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from normless.plots import Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.stated_claims import Tests, decided
from normless_papers.theory import descent_table, linear_systems


@dataclass(frozen=True)
class Systems:
    """One layer's training and the linear systems, and descent on systems of several condition numbers.

    Attributes:
        deviations: a row per draw, relative: `loss` of the network from that of the systems plus C, `minimum` from
            the brute-force solution, `decoupling`, the change of the other columns' losses by one column.
        descent: as `descent_table` returns it, from the smallest condition number to the largest.
    """

    deviations: pd.DataFrame
    descent: pd.DataFrame


def _one_layer(facts: Systems) -> Tests:
    table, deviation = facts.descent, facts.deviations.max()
    off = float((table["gradient_ratio"] / table["predicted_gradient_ratio"] - 1).abs().max())
    step = float((table["largest_step"] / table["predicted_largest_step"] - 1).abs().max())
    steps, largest, ratio = (table[name].diff().iloc[1:] for name in ("steps", "largest_step", "gradient_ratio"))
    return {
        "The loss of the network is that of the systems plus C, to 1e-9.": decided(
            deviation["loss"] <= 1e-9, deviation=deviation["loss"]
        ),
        "Both have the same minimum, to 1e-6 of the brute-force solution by least squares.": decided(
            deviation["minimum"] <= 1e-6, deviation=deviation["minimum"]
        ),
        "Columns decouple: one changes no other's loss, to 1e-9.": decided(
            deviation["decoupling"] <= 1e-9, deviation=deviation["decoupling"]
        ),
        "Gradient descent on one system is slower with every larger κ.": decided(
            (steps > 0).all(), fewest=table["steps"].min(), most=table["steps"].max()
        ),
        "It needs a smaller learning rate: the largest stable one falls with κ and is 1/σ_max² within 1 %.": decided(
            bool((largest < 0).all()) and step <= 0.011, largest_deviation=step
        ),
        "Gradients in the extreme subspaces differ by κ², to 1e-6.": decided(
            bool((ratio > 0).all()) and off <= 1e-6, largest_deviation=off
        ),
    }


@artefact("understanding-bn/proposition-1", basis="formula", checks=_one_layer)
def one_layer(context: Context, *, width: int, draws: int, conditions: Sequence[float]) -> Evidence:
    """Proposition 1: to train one layer of a linear network is to solve linear systems of condition κ(Ā)."""
    deviations = pd.DataFrame([_reduction(width, context.seed + draw) for draw in range(draws)])
    table = descent_table([_of_condition(value, width) for value in conditions], seed=context.seed)
    return Evidence(
        table,
        Systems(deviations, table),
        {
            "networks": f"three linear layers of width {width}, the middle one trained; {2 * width} Gaussian samples",
            "draws": draws,
            "seeds": f"{context.seed} to {context.seed + draws - 1}",
            "systems": f"{width}×{width} with geometric singular values, the smallest 1; error to a thousandth",
            "data": "generated",
        },
        draw=lambda: STEPS(table),
    )


def _reduction(width: int, seed: int) -> dict[str, float]:
    """A row of `Systems.deviations`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weights = [draw(width, width) for _ in range(3)]
    inputs, targets = draw(width, 2 * width), draw(width, 2 * width)
    systems = linear_systems(weights, 1, inputs, targets)
    loss = float((weights[2] @ weights[1] @ weights[0] @ inputs - targets).square().sum())
    variables = systems.variables(weights[1])
    losses = systems.column_losses(variables)
    moved = variables.clone()
    moved[:, 0] += 1.0
    others = (systems.column_losses(moved)[1:] - losses[1:]).abs().max() / losses.max()
    # Brute force: the layer's entries as one vector of unknowns.
    design = np.kron(weights[2].numpy(), (weights[0] @ inputs).T.numpy())
    solution = np.linalg.lstsq(design, targets.numpy().ravel())[0]
    least = float(np.square(design @ solution - targets.numpy().ravel()).sum())
    return {
        "loss": abs(float(losses.sum()) + systems.constant - loss) / loss,
        "minimum": abs(systems.minimum() - least) / least,
        "decoupling": float(others),
    }


def _of_condition(condition: float, width: int) -> Tensor:
    """A matrix of that condition number between random orthogonal ones, its smallest singular value 1."""
    generator = torch.Generator().manual_seed(width)
    left, right = (
        torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0] for _ in range(2)
    )
    values = torch.logspace(0, np.log10(condition), width, dtype=torch.float64)
    matrix: Tensor = left @ torch.diag(values) @ right
    return matrix


STEPS = Plot(
    "measured_on_predicted",
    x="condition_number",
    measured="steps",
    log="xy",
    title="Ill-conditioned systems are slow",
    x_label="condition number κ",
    y_label="steps of gradient descent; line: by the extremes",
)
