"""The limiting law of the squared singular values as curves (figures 9 and 10)."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi

import numpy as np
import pandas as pd
from scipy.integrate import trapezoid

from normless.plots import Plot
from normless_papers.artefact import Context, Evidence, artefact
from normless_papers.stated_claims import Test, Tests, decided, equals
from normless_papers.theory import density, density_table


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
def parametrization(context: Context, *, factors: Sequence[int], points: int) -> Evidence:
    """Figure 9: x(φ) falls strictly from the edge at φ → 0 to 0 at φ → π/(M+1)."""
    curves = density_table(factors, points=points)
    rows = []
    for count in factors:
        curve = curves[curves["factors"] == count].sort_values("angle")
        angle, x = curve["angle"].to_numpy(float), curve["x"].to_numpy(float)
        direct = np.sin((count + 1) * angle) ** (count + 1) / (np.sin(angle) * np.sin(count * angle) ** count)
        # Near (M+1)φ = π the printed formula cancels.
        apart = np.abs(x / direct - 1)[(count + 1) * angle < pi - 1e-3].max()
        rows.append(
            {
                "factors": count,
                "edge": (count + 1) ** (count + 1) / count**count,
                "first_x": x[0],
                "last_x": x[-1],
                "largest_rise": float(np.diff(x).max()),
                "deviation": float(apart),
            }
        )
    measured = pd.DataFrame(rows)
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
        "The density diverges at 0, the more strongly the larger M: at x = 1e-8 it is above 10³ and rises with "
        "M.": decided(near.min() > 1e3 and (near.diff().iloc[1:] > 0).all(), smallest=near.min(), largest=near.max()),
        "M = 1 is the law of Marchenko and Pastur, √((4-x)/x)/(2π), to 1e-9.": decided(off <= 1e-9, deviation=off),
    }


@artefact("understanding-bn/figure-10", basis="formula", checks=_densities)
def densities(context: Context, *, factors: Sequence[int], points: int) -> Evidence:
    """Figure 10: the density integrates to 1 and diverges at 0, the more strongly the larger M."""
    curves = density_table(factors, points=points)
    rows = []
    for count in factors:
        curve = curves[curves["factors"] == count].sort_values("x")
        x, height = curve["x"].to_numpy(float), curve["density"].to_numpy(float)
        # In log x the integrand has no singularity at 0.
        rows.append(
            {
                "factors": count,
                "integral": float(trapezoid(height * x, np.log(x))),
                "density_at_1e-8": float(density(1e-8, count)),
                "exponent_at_zero": exponent_at_zero(count),
                "predicted_exponent": -count / (count + 1),
            }
        )
    measured = pd.DataFrame(rows)
    x = np.linspace(0, 4, 1001)[1:-1]
    apart = np.abs(density(x, 1) / (np.sqrt((4 - x) / x) / (2 * pi)) - 1).max()
    return Evidence(
        measured,
        measured.assign(deviation_from_marchenko_pastur=apart),
        {"formula": "equation (10)", "factors": list(factors), "points": points, "data": "none"},
        draw=lambda: DENSITY(curves),
        remarks=("Integrated over the curve in log x by the trapezoidal rule.",),
    )


def exponent_at_zero(factors: int) -> float:
    """The slope of log ρ against log x between two points near 0."""
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
