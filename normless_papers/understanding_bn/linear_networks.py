"""Bjorck et al.: the limiting law as curves (figures 9 and 10), one layer of a linear network (proposition 1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi

import numpy as np
import pandas as pd
import torch
from scipy.integrate import trapezoid
from torch import Tensor

from normless_lab.plots import Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.budgets import Network, Seeds
from normless_papers.claims import Test, Tests, decided, equals
from normless_papers.theory.fuss_catalan import density, density_table
from normless_papers.theory.linear_networks import descent_table, linear_systems


def _parametrization(curves: pd.DataFrame) -> Tests:
    tests: dict[str, Test] = {}
    for count, edge, first, last, rise, apart in curves.itertuples(index=False, name=None):
        tests |= {
            f"M = {count}: x(φ) is strictly decreasing.": decided(rise < 0, largest_rise=rise),
            f"M = {count}: x tends to (M+1)^(M+1)/M^M at φ → 0, within 1e-6.": equals(first, edge, relative=1e-6),
            f"M = {count}: x tends to 0 at φ → π/(M+1), below 1e-6.": equals(last, 0.0, absolute=1e-6),
            f"M = {count}: the curve is equation (9), to 1e-9.": decided(apart <= 1e-9, deviation=apart),
        }
    return tests


@artefact("understanding-bn/figure-9", basis="formula", checks=_parametrization)
def parametrization(context: Context, *, factors: Sequence[int], points: Seeds[int]) -> Evidence:
    curves = density_table(factors, points=points)
    rows = []
    for count in factors:
        curve = curves[curves["factors"] == count].sort_values("angle")
        angle, x = curve["angle"].to_numpy(float), curve["x"].to_numpy(float)
        direct = np.sin((count + 1) * angle) ** (count + 1) / (np.sin(angle) * np.sin(count * angle) ** count)
        # Near (M+1)φ = π the printed formula suffers from cancellation.
        apart = np.abs(x / direct - 1)[(count + 1) * angle < pi - 1e-3].max()
        edge = (count + 1) ** (count + 1) / count**count
        rows.append((count, edge, x[0], x[-1], float(np.diff(x).max()), float(apart)))
    columns = ["factors", "edge", "first_x", "last_x", "largest_rise", "deviation"]
    measured = pd.DataFrame(rows, columns=columns)
    return Evidence(
        measured,
        measured,
        {"formula": "equation (9)", "factors": list(factors), "angles": points, "data": "none"},
        draw=lambda: PARAMETRIZATION(curves),
    )


def _densities(densities: pd.DataFrame) -> Tests:
    near, off = densities["density_at_1e-8"], densities["deviation_from_marchenko_pastur"].max()
    integrals = densities[["factors", "integral"]].itertuples(index=False, name=None)
    return {
        **{
            f"M = {count}: the density integrates to 1, within 1e-4.": equals(integral, 1.0, absolute=1e-4)
            for count, integral in integrals
        },
        "The density diverges at 0, faster for larger M: at x = 1e-8 it is above 10³ and rises with M.": decided(
            near.min() > 1e3 and (near.diff().iloc[1:] > 0).all(), smallest=near.min(), largest=near.max()
        ),
        "M = 1 is the law of Marchenko and Pastur, √((4-x)/x)/(2π), to 1e-9.": decided(off <= 1e-9, deviation=off),
    }


@artefact("understanding-bn/figure-10", basis="formula", checks=_densities)
def densities(context: Context, *, factors: Sequence[int], points: Seeds[int]) -> Evidence:
    curves = density_table(factors, points=points)
    rows = []
    for count in factors:
        curve = curves[curves["factors"] == count].sort_values("x")
        x, height = curve["x"].to_numpy(float), curve["density"].to_numpy(float)
        # The integrand in log x has no singularity at 0.
        integral = float(trapezoid(height * x, np.log(x)))
        rows.append((count, integral, float(density(1e-8, count)), exponent_at_zero(count), -count / (count + 1)))
    columns = ["factors", "integral", "density_at_1e-8", "exponent_at_zero", "predicted_exponent"]
    measured = pd.DataFrame(rows, columns=columns)
    x = np.linspace(0, 4, 1001)[1:-1]
    apart = np.abs(density(x, 1) / (np.sqrt((4 - x) / x) / (2 * pi)) - 1).max()
    return Evidence(
        measured,
        measured.assign(deviation_from_marchenko_pastur=apart),
        {"formula": "equation (10)", "factors": list(factors), "points": points, "data": "none"},
        draw=lambda: DENSITY(curves),
    )


def exponent_at_zero(factors: int) -> float:
    """Return the slope of log ρ against log x between two points near 0."""
    near, nearer = 10.0 ** (-6 * (factors + 1)), 10.0 ** (-7 * (factors + 1))
    heights = density([near, nearer], factors)
    return float(np.log(heights[0] / heights[1]) / np.log(near / nearer))


# Figure 9: the squared singular value by the angle φ that parametrizes the density.
PARAMETRIZATION = Plot(
    "lines",
    lambda curves: curves[curves["of"] == "squares"],
    x="angle",
    y="x",
    by="factors",
    name="M = {}",
    names="legend",
    title="Parametrization x(φ)",
    x_label="angle φ (radians)",
    y_label="squared singular value x",
)

# Figure 10: the limiting density.
DENSITY = Plot(
    "lines",
    lambda curves: curves[(curves["of"] == "squares") & (curves["x"] >= 1e-4)],
    x="x",
    y="density",
    by="factors",
    name="M = {}",
    log="xy",
    y_limits=(1e-3, None),
    names="legend",
    title="Limiting density",
    x_label="squared singular value (entries of variance 1/N)",
    y_label="density",
)


def _one_layer(facts: tuple[pd.DataFrame, pd.DataFrame]) -> Tests:
    """Check one layer's training against the linear systems, and descent from the smallest condition number up.

    The deviations, a row per draw, are relative: `loss`, of the network from that of the systems plus C; `minimum`,
    from the brute-force solution; `decoupling`, the effect of one column on the losses of others.
    """
    deviations, table = facts
    deviation = deviations.max()
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
        "Columns decouple: each changes only its own loss, to 1e-9.": decided(
            deviation["decoupling"] <= 1e-9, deviation=deviation["decoupling"]
        ),
        "Gradient descent on one system is slower with every larger κ.": decided(
            (steps > 0).all(), fewest=table["steps"].min(), most=table["steps"].max()
        ),
        "It needs a smaller learning rate: the largest stable rate falls with κ and is 1/σ_max² within 1 %.": decided(
            bool((largest < 0).all()) and step <= 0.011, largest_deviation=step
        ),
        "Gradients in the extreme subspaces differ by κ², to 1e-6.": decided(
            bool((ratio > 0).all()) and off <= 1e-6, largest_deviation=off
        ),
    }


@artefact("understanding-bn/proposition-1", basis="formula", checks=_one_layer)
def one_layer(context: Context, *, width: Network[int], draws: Seeds[int], conditions: Sequence[float]) -> Evidence:
    deviations = pd.DataFrame([_reduction(width, context.seed + draw) for draw in range(draws)])
    table = descent_table([_of_condition(value, width) for value in conditions], seed=context.seed)
    return Evidence(
        table,
        (deviations, table),
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
    """Measure the deviations of one draw; see `_one_layer`."""
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
    # The brute-force solution takes the layer's entries as one vector of unknowns.
    design = np.kron(weights[2].numpy(), (weights[0] @ inputs).T.numpy())
    solution = np.linalg.lstsq(design, targets.numpy().ravel())[0]
    least = float(np.square(design @ solution - targets.numpy().ravel()).sum())
    return {
        "loss": abs(float(losses.sum()) + systems.constant - loss) / loss,
        "minimum": abs(systems.minimum() - least) / least,
        "decoupling": float(others),
    }


def _of_condition(condition: float, width: int) -> Tensor:
    """Make a matrix of that condition number and smallest singular value 1, between random orthogonal matrices."""
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
