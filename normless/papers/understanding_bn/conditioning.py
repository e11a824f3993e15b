"""Condition numbers and largest singular values of products of random matrices (figures 11 and 12, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from normless.papers.artefact import Context, artefact
from normless.papers.estimates import qualified
from normless.papers.evidence import Evidence
from normless.papers.understanding_bn.random_matrices import matrix_setup
from normless.papers.verdict import Estimate, check, larger
from normless.probes.matrices.random_factors import Entries
from normless.probes.matrices.singular_values import (
    conditioning_table,
    distance_between,
    extremes_table,
    singular_value_table,
)
from normless.report.probes.conditioning import condition_against_factors, largest_value_against_factors

_PUBLISHED_SIZE = 1000
_OTHERS: tuple[Entries, ...] = ("uniform", "signs")


@artefact("understanding-bn/figure-11", basis="measurement")
def condition_numbers(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Figure 11: the condition number of a product grows roughly exponentially with the number of factors."""
    table = conditioning_table(extremes_table(factors, size, runs=runs, seed=context.seed), size)
    measured = table.drop(columns=["mean_largest", "std_largest", "predicted_largest"])
    logarithm = measured["mean_log10_condition"]
    slope, offset = np.polyfit(measured["factors"], logarithm, 1)
    straight = slope * measured["factors"] + offset
    explained = float(np.corrcoef(measured["factors"], logarithm)[0, 1] ** 2)
    last = measured.iloc[-1]
    checks = (
        check(
            "κ rises with every further factor.",
            bool(logarithm.is_monotonic_increasing),
            smallest_rise=float(np.diff(logarithm).min()),
        ),
        check(
            "It rises roughly exponentially: a straight line explains more than 0.98 of the variance of log₁₀ κ.",
            explained > 0.98,
            explained=explained,
            decades_per_factor=float(slope),
            largest_deviation=float((logarithm - straight).abs().max()),
        ),
        larger(
            f"It rises dramatically: with {int(last['factors'])} factors κ is more than a million times that of one "
            "matrix (log₁₀).",
            Estimate(last["mean_log10_condition"], last["std_log10_condition"], runs),
            Estimate(logarithm.iloc[0], measured["std_log10_condition"].iloc[0], runs),
            by=6.0,
        ),
    )
    return Evidence(
        measured,
        checks,
        matrix_setup(context, size, factors, runs),
        draw=lambda: condition_against_factors(table),
        remarks=(
            "Singular values are those of the product and not of rounding: the product is kept in graded form. "
            "Predicted is the ratio of the limiting law's edge to its quantile 1/(2N), an order of magnitude.",
        ),
    )


@artefact("understanding-bn/figure-12", basis="measurement")
def largest_values(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Figure 12: the largest singular value of a product grows with the number of factors, slower than linearly."""
    table = conditioning_table(extremes_table(factors, size, runs=runs, seed=context.seed), size)
    measured = table[["factors", "runs", "mean_largest", "std_largest", "predicted_largest"]]
    largest = measured["mean_largest"]
    first, last = measured.iloc[0], measured.iloc[-1]
    linear = float(first["mean_largest"]) * float(last["factors"]) / float(first["factors"])
    off = (largest / measured["predicted_largest"] - 1).abs()
    root = check(
        "It is the root of theorem 1's edge, √((M+1)^(M+1)/M^M), within 10 %: growth as √M is the law's own and no "
        "effect of finite size.",
        bool((off <= 0.1).all()),
        largest_deviation=float(off.max()),
    )
    checks = (
        check(
            "It rises with every further factor.",
            bool(largest.is_monotonic_increasing),
            smallest_rise=float(np.diff(largest).min()),
        ),
        larger(
            f"It rises more slowly than linearly: with {int(last['factors'])} factors it is less than half as large "
            "as in proportion to their number.",
            Estimate(linear / 2),
            Estimate(float(last["mean_largest"]), float(last["std_largest"]), runs),
        ),
        *qualified(
            (root,), "" if size >= _PUBLISHED_SIZE else f"N = {size} is far from the limit; the paper has 1000."
        ),
    )
    return Evidence(
        measured,
        checks,
        matrix_setup(context, size, factors, runs),
        draw=lambda: largest_value_against_factors(table),
    )


@artefact("understanding-bn/scale-and-distribution-do-not-matter", basis="measurement")
def universality(context: Context, *, size: int, factors: Sequence[int], runs: int) -> Evidence:
    """Section 4: condition numbers do not depend on the gain, spectra not on the distribution of the entries."""
    seed = context.seed
    plain = extremes_table(factors, size, runs=runs, seed=seed)
    gains: tuple[float | str, ...] = ("he", "standard", 0.1)
    changes = {
        str(gain): float(
            (
                extremes_table(factors, size, runs=runs, gain=gain, seed=seed)["log10_condition"]
                - plain["log10_condition"]
            )
            .abs()
            .max()
        )
        for gain in gains
    }
    gaussian = singular_value_table(factors, size, runs=runs, seed=seed)
    bound = 5 / size
    distances, rows, tables = {}, [], [conditioning_table(plain, size).assign(series="gaussian, xavier")]
    for entries in _OTHERS:
        others = singular_value_table(factors, size, runs=runs, entries=entries, seed=seed)
        distances[entries] = float(distance_between(gaussian, others)["distance"].max())
        spread = extremes_table(factors, size, runs=runs, entries=entries, seed=seed)
        tables.append(conditioning_table(spread, size).assign(series=entries))
    rows += [{"compared": f"gain {gain}", "change_of_log10_condition": change} for gain, change in changes.items()]
    rows += [{"compared": f"{entries} entries", "distance": distance} for entries, distance in distances.items()]
    checks = (
        check(
            "The condition number of every product is unchanged by the gain: log₁₀ κ to 1e-6.",
            max(changes.values()) <= 1e-6,
            largest_change=max(changes.values()),
        ),
        check(
            f"Uniform entries and signs have the singular values of Gaussian ones: shares below any point, all runs "
            f"together, differ by at most 5/N = {bound:g}.",
            max(distances.values()) <= bound,
            largest_distance=max(distances.values()),
        ),
    )
    return Evidence(
        pd.DataFrame(rows),
        checks,
        matrix_setup(context, size, factors, runs)
        | {"gains": [str(gain) for gain in gains], "entries": list(_OTHERS)},
        draw=lambda: condition_against_factors(pd.concat(tables)),
        remarks=("Xavier's gain is 1, Kaiming's √2, and `standard` entries have variance 1.",),
    )
