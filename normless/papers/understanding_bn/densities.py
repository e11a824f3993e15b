"""The limiting law of the squared singular values as curves (figures 9 and 10)."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi

import numpy as np
import pandas as pd
from scipy.integrate import trapezoid

from normless.papers.artefact import Context, artefact
from normless.papers.evidence import Evidence
from normless.papers.verdict import Check, check, close
from normless.probes.matrices.fuss_catalan import density, density_table
from normless.report.probes.singular_values import density_parametrization, limiting_density


@artefact("understanding-bn/figure-9", basis="measurement")
def parametrization(context: Context, *, factors: Sequence[int], points: int) -> Evidence:
    """Figure 9: x(φ) falls strictly from the edge at φ → 0 to 0 at φ → π/(M+1)."""
    curves = density_table(factors, points=points)
    rows, checks = [], []
    for count in factors:
        curve = curves[curves["factors"] == count].sort_values("angle")
        angle, x = curve["angle"].to_numpy(float), curve["x"].to_numpy(float)
        direct = np.sin((count + 1) * angle) ** (count + 1) / (np.sin(angle) * np.sin(count * angle) ** count)
        # Where (M+1)φ is near π the formula as it is printed cancels.
        apart = np.abs(x / direct - 1)[(count + 1) * angle < pi - 1e-3].max()
        edge = (count + 1) ** (count + 1) / count**count
        steepest = float(np.diff(x).max())
        rows.append({"factors": count, "first_x": x[0], "edge": edge, "last_x": x[-1], "largest_rise": steepest})
        checks += [
            check(f"M = {count}: x(φ) is strictly decreasing.", steepest < 0, largest_rise=steepest),
            close(f"M = {count}: x tends to (M+1)^(M+1)/M^M at φ → 0, within 1e-6.", x[0], edge, relative=1e-6),
            close(f"M = {count}: x tends to 0 at φ → π/(M+1), below 1e-6.", x[-1], 0.0, absolute=1e-6),
            check(f"M = {count}: the curve is equation (9), to 1e-9.", bool(apart <= 1e-9), deviation=float(apart)),
        ]
    return Evidence(
        pd.DataFrame(rows),
        tuple(checks),
        {"formula": "equation (9)", "factors": list(factors), "angles": points, "data": "none"},
        draw=lambda: density_parametrization(curves),
    )


@artefact("understanding-bn/figure-10", basis="measurement")
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
    checks: list[Check] = [
        close(f"M = {row['factors']}: the density integrates to 1, within 1e-4.", row["integral"], 1.0, absolute=1e-4)
        for row in rows
    ]
    checks.append(
        check(
            "The density diverges at 0, the more strongly the larger M: at x = 1e-8 it is above 10³ and rises with "
            "M.",
            bool(measured["density_at_1e-8"].min() > 1e3 and measured["density_at_1e-8"].is_monotonic_increasing),
            smallest=measured["density_at_1e-8"].min(),
            largest=measured["density_at_1e-8"].max(),
        )
    )
    x = np.linspace(0, 4, 1001)[1:-1]
    apart = np.abs(density(x, 1) / (np.sqrt((4 - x) / x) / (2 * pi)) - 1).max()
    checks.append(
        check(
            "M = 1 is the law of Marchenko and Pastur, √((4-x)/x)/(2π), to 1e-9.",
            bool(apart <= 1e-9),
            deviation=apart,
        )
    )
    return Evidence(
        measured,
        tuple(checks),
        {"formula": "equation (10)", "factors": list(factors), "points": points, "data": "none"},
        draw=lambda: limiting_density(curves),
        remarks=("Integrated over the curve in log x by the trapezoidal rule.",),
    )


def exponent_at_zero(factors: int) -> float:
    """The slope of log ρ against log x between two points near 0."""
    near, nearer = 10.0 ** (-6 * (factors + 1)), 10.0 ** (-7 * (factors + 1))
    heights = density([near, nearer], factors)
    return float(np.log(heights[0] / heights[1]) / np.log(near / nearer))
